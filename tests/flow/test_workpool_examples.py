"""The examples of pools: each runs to its end on both stores, and says what its page says of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

WORKPOOLS = Path(__file__).parents[2] / "examples" / "workpools"


def run(name: str, database_url: str) -> str:
    done = subprocess.run(
        [sys.executable, WORKPOOLS / f"{name}.py"],
        env={**os.environ, "DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_mails_are_not_held_up_by_forecasts(database_url: str) -> None:
    said = run("signups", database_url)
    sent, there, all_of_them = (
        int(number) for number in re.findall(r"(\d+) (?:e-mails|forecasts (?:are there|came))", said)
    )
    assert (sent, all_of_them) == (20, 200)
    assert there < 200, "somebody waits for an e-mail, and nobody for a forecast"


def test_each_customer_pays_once_after_an_outage(database_url: str) -> None:
    said = run("payments", database_url)
    assert "{'paid': 30}, 30 payments were made" in said
    most = re.search(r"more than (\d+) requests", said)
    assert most is not None
    assert 0 < int(most[1]) <= 4


def test_a_singleton_counter_counts_each_time(database_url: str) -> None:
    assert "The counter stands at 200; 200 jobs" in run("counter", database_url)
