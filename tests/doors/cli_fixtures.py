"""The command line as tests use it: called in this process, or as a process of its own."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from stage.processes import Fork

from penstock.cli.main import run

PROGRAM = """
from datetime import datetime, timedelta
from typing import Literal

from penstock import ActionCtx, App, ApplicationError, Id, Index, MutationCtx, QueryCtx, Table

app = App()


class Booking(Table, live=False):
    customer: str
    phone: str
    guests: int = 1
    status: Literal["pending", "paid"] = "pending"
    note: str | None = None

    by_customer = Index("customer")


@app.mutation
async def book(ctx: MutationCtx, customer: str, phone: str, guests: int = 1) -> Id[Booking]:
    booking = await ctx.db.insert(Booking(customer=customer, phone=phone, guests=guests))
    await ctx.scheduler.run_after(timedelta(days=1), remind, booking)
    return booking


@app.query
async def upcoming(ctx: QueryCtx, customer: str) -> list[Booking]:
    return await ctx.db.query(Booking).with_index(Booking.by_customer, customer=customer).take(20)


@app.internal_mutation
async def remind(ctx: MutationCtx, booking: Id[Booking]) -> None:
    await ctx.db.patch(Booking, booking, status="paid")


@app.internal_action
async def refuse(ctx: ActionCtx) -> None:
    raise ApplicationError({"reason": "full"})


@app.internal_action
async def fail(ctx: ActionCtx) -> None:
    _deeper()


def _deeper() -> None:
    raise ValueError("ouch")
"""


HELLO = """
from penstock import App, QueryCtx

app = App()


@app.query
async def hello(ctx: QueryCtx) -> str:
    return "hi"
"""

# Programs are written again within a second: what was compiled of the one before would pass for the next.
_NOT_COMPILED = {"PYTHONDONTWRITEBYTECODE": "1"}


@dataclass
class Result:
    """What a command has left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Console:
    """Calls penstock in a folder of its own, on a database of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._capture = capture

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        return file

    def write_bookings(self, *changes: tuple[str, str]) -> None:
        """The program about bookings, with some of its text changed."""
        text = PROGRAM
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.write("bookings.py", text)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Result:
        """A command in this process."""
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capture.readouterr()
        own = {file.stem for file in self.folder.glob("*.py")}
        others = {name: sys.modules.pop(name) for name in own & sys.modules.keys()}
        before, path = set(sys.modules), list(sys.path)
        try:
            code = run(list(arguments))
        finally:
            sys.path[:] = path
            for name in set(sys.modules) - before:
                file = getattr(sys.modules[name], "__file__", None) or ""
                if file.startswith(str(self.folder)):
                    del sys.modules[name]
            sys.modules.update(others)
        out, err = self._capture.readouterr()
        return Result(code, out.decode(), err.decode())

    def enter(self, name: str) -> None:
        """Go on in an empty folder beside."""
        self.folder = self.folder.with_name(name)
        self.folder.mkdir()
        self._monkeypatch.chdir(self.folder)

    def ok(self, *arguments: str, stdin: bytes = b"") -> Result:
        """A command that must succeed."""
        result = self(*arguments, stdin=stdin)
        assert result.code == 0, result.err
        return result

    def start(self, *arguments: str, **environment: str) -> Process:
        """A command as a process."""
        return Process(self.folder, arguments, environment)


class Process:
    """A running command; its output is read line by line. Use it in ``with``."""

    def __init__(self, folder: Path, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        ours, theirs = os.pipe()
        known = {**os.environ, **_NOT_COMPILED, **environment}
        self._process: Fork | subprocess.Popen[bytes]
        if {"dev", "--watch"} & {*arguments}:  # it starts again what it was started with
            command = [sys.executable, "-m", "penstock", *arguments]
            self._process = subprocess.Popen(command, cwd=folder, env=known, stdout=theirs, stderr=theirs)
        else:
            files = (0, theirs, theirs)
            self._process = Fork("penstock", arguments, folder=folder, environment=known, files=files)
        os.close(theirs)
        self._said = os.fdopen(ours)
        self.lines: list[str] = []
        self.pid = self._process.pid

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read until a line matches."""
        for line in self._said:
            self.lines.append(line)
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"no line matches {pattern!r}:\n{''.join(self.lines)}")

    def tell(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Read to the end; the exit code."""
        self.lines += self._said.readlines()
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()


@pytest.fixture
def console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Iterator[Console]:
    """A console in an empty folder; its database is a SQLite file there."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_") or name == "DATABASE_URL"]:
        monkeypatch.delenv(name)
    folder = tmp_path / "program"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # see _NOT_COMPILED
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield Console(folder, monkeypatch, capsysbinary)
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def unmigrated(console: Console, empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    """A console in the folder of a program, with an empty database on each store in turn."""
    console.write_bookings()
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    return console


@pytest.fixture
def shell(console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    """A console in an empty folder, with a database on each store in turn."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    return console


@pytest.fixture
def bookings(shell: Console) -> Console:
    """The same, in the folder of a program."""
    shell.write_bookings()
    shell.ok("migrate")
    return shell
