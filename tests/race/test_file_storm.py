"""Processes are killed at each step of uploads and deletions: in the end rows and bytes are those of the same files."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import ExitStack
from pathlib import Path

import pytest
from programs.uploading import STEPS, app
from stage.needs import LONG
from stage.processes import Process
from stage.servers import bytes_in, keys_of, make_old, sweep

from penstock import App
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

AT_ONCE, UPLOADS = 3, 30
ROUNDS = 120 if LONG else 2 * len(STEPS)


def run_all(database: str, folder: Path) -> None:
    """Run processes that die at their steps, some at a time."""
    for first in range(0, ROUNDS, AT_ONCE):
        with ExitStack() as stack:
            for number in range(first, min(first + AT_ONCE, ROUNDS)):
                given = (str(folder / "files"), str(folder / "ledger"), STEPS[number % len(STEPS)], str(number))
                process = Process(database, *given, str(UPLOADS), program="programs.uploading")
                stack.callback(process.close)
                stack.callback(process.wait)


async def test_rows_and_bytes_agree_after_kills_at_every_step(database_url: str, tmp_path: Path) -> None:
    async with TestApp(app, database_url):
        """Make the tables."""
    await asyncio.to_thread(run_all, database_url, tmp_path)
    lines = (tmp_path / "ledger").read_text().splitlines()
    told = {
        word: {file for kind, _, file in (line.partition(" ") for line in lines) if kind == word}
        for word in ("stored", "deleting", "deleted")
    }
    assert len(told["stored"]) >= 4 * ROUNDS
    print(f"{len(told['stored'])} uploads and {len(told['deleted'])} deletions were answered")  # noqa: T201 - a figure
    place = str(tmp_path / "files")
    async with TestApp(App(), database_url, files=place) as test:
        make_old(place)
        await sweep(test)
        assert sorted(bytes_in(place)) == await keys_of(test)
        assert await test.engine.store.files.list_owed(1) == {}
        for file in told["stored"]:
            row = await test.engine.store.files.find(None, file)
            if file in told["deleted"]:
                assert row is None
            elif file not in told["deleting"]:
                assert row is not None, "an upload that was answered is there"
                content = await asyncio.to_thread(Path(place, row.key).read_bytes)
                assert (row.size, row.digest) == (len(content), hashlib.sha256(content).hexdigest())
