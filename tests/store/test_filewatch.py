"""Wake-ups on SQLite come from the kernel where it tells of writes, and from looks where it does not."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.open import make_store
from penstock.store.sqlite import signals
from penstock.store.sqlite.filewatch import FileWatch


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify")
async def test_each_write_is_heard_until_the_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a file's name"
    with pytest.raises(OSError, match="a file's name"):
        FileWatch(path)
    path.write_text("before")
    watch = FileWatch(path)
    for text in ("one", "two"):
        path.write_text(text)
        await watch.changed.wait()
        watch.listen()
    watch.close()
    path.write_text("after")
    await SystemClock().sleep(0)
    assert not watch.changed.is_set()


@pytest.mark.parametrize("tells", [True, False], ids=["the kernel tells", "it does not"])
async def test_a_commit_of_any_program_wakes(sqlite_url: str, monkeypatch: pytest.MonkeyPatch, tells: bool) -> None:
    if tells:
        if sys.platform != "linux":
            pytest.skip("only Linux has inotify")
        monkeypatch.setattr(signals, "_LONGEST_PAUSE", 3600.0)  # no look comes by itself
    else:

        def refuse(path: Path) -> FileWatch:
            raise OSError(path)

        monkeypatch.setattr(signals, "FileWatch", refuse)
    store, woken = make_store(Config(database=sqlite_url), SystemClock()), asyncio.Event()
    await store.open()
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    store.signals.subscribe(woken)
    try:
        other.execute("create table noted (number integer)")
        for number in range(5):
            await woken.wait()
            woken.clear()
            other.execute("insert into noted values (?)", (number,))
        await woken.wait()
    finally:
        other.close()
        await store.close()
