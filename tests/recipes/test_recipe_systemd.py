"""The units of systemd: systemd itself finds nothing to correct in them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stage.needs import program

UNITS = Path(__file__).parents[2] / "deploy/systemd"


@pytest.mark.long
def test_systemd_verifies_the_units(tmp_path: Path) -> None:
    """Their commands and their user are those of this machine; `test_house_dist` starts the commands themselves."""
    analyze, there = program("systemd-analyze", "systemd"), shutil.copytree(UNITS, tmp_path / "units")
    for unit in there.iterdir():
        text = unit.read_text().replace("/srv/app/.venv/bin/penstock", sys.executable)
        unit.write_text(text.replace("User=penstock", "User=root").replace("/srv/app", str(tmp_path)))
    names = [f"./{name}.service" for name in ("penstock-migrate", "penstock-server", "penstock-worker@1")]
    words = [analyze, "verify", "--man=no", *names]
    done = subprocess.run(words, cwd=there, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (there / "penstock-server.service").write_text("[Service]\nRestrat=always\nExecStart=/nowhere\n")
    wrong = subprocess.run(words, cwd=there, capture_output=True, text=True, check=False)
    assert "Restrat" in wrong.stderr, "it reads them"
