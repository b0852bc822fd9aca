"""Commands on a real terminal: every answer that a person may give, lists of any width, and top."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
from doors.cli_fixtures import Console
from programs import admin, deliveries, everynoun, noisy
from programs.admin import on
from stage.processes import Fork

from penstock import TaskFilter
from penstock.testing import TestApp

ENTER, INTERRUPT, END_OF_FILE = "\r", "\x03", "\x04"


class Terminal:
    """A command of the command line on a terminal. Use it in ``with``.

    Args:
        folder: Where it is called.
        arguments: The command.
        errors: Where stderr goes instead of the terminal.

    Attributes:
        shown: All that stood on the terminal so far, as a person has read it.
    """

    def __init__(self, folder: Path, *arguments: str, errors: int | None = None) -> None:
        self.shown = ""
        self._text = ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode  # what is read may end within a character
        self._ours, theirs = pty.openpty()
        self._process = Fork(
            "penstock",
            arguments,
            folder=folder,
            environment={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TERM": "xterm", "NO_COLOR": "1"},
            files=(theirs, theirs, theirs if errors is None else errors),
            terminal=True,
        )
        os.close(theirs)

    def wait_for(self, text: str) -> None:
        """Read until something is shown."""
        while text not in self.shown:
            assert self._read(), f"{text!r} is not shown:\n{self.shown}"

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        """Read to the end; the exit code as a shell has it."""
        while self._read():
            continue
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def _read(self) -> bool:
        """Read what is shown next; whether there was anything."""
        read = b""
        with suppress(OSError):  # so Linux says that nobody has the other end any more
            read = os.read(self._ours, 4096)
        self._text += self._decode(read, final=not read)
        self.shown = self._text.replace("\r\n", "\n")
        return bool(read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


NOTHING = "error: Nothing was done.\n"
DROP = ("--app", "programs.deliveries", "outbox", "drop", "post")
DELETE = ("--app", "programs.admin:app", "tasks", "delete", "ship")


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    deliveries.failing.clear()
    yield
    deliveries.failing.clear()


@pytest.fixture
def stage(shell: Console, monkeypatch: pytest.MonkeyPatch) -> Console:
    """Where programs of the stage are found."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return shell


@pytest.fixture
def shop(stage: Console, database_url: str) -> Console:
    """The same, with letters that have failed, and orders that wait."""

    async def order(test: TestApp) -> None:
        await test.run_mutation(admin.put, ["a", "b", "c"])
        await test.plan()

    on(deliveries.app, database_url, deliveries.put_and_fail)
    on(admin.app, database_url, order)
    return stage


def outboxes(url: str) -> dict[str, Any]:
    return {one.name: one for one in on(deliveries.app, url, deliveries.app.outboxes.list)}


def rows(url: str) -> dict[str, int]:
    counted: dict[str, int] = on(admin.app, url, lambda test: admin.app.tasks.count(test, TaskFilter(task="ship")))
    return counted


def answered(shop: Console, command: tuple[str, ...], question: str, answer: str) -> tuple[int, str]:
    """A command's exit code, and what it shows behind its question."""
    with Terminal(shop.folder, *command) as terminal:
        terminal.wait_for("[y/N]: ")
        assert terminal.shown.endswith(f"{question} [y/N]: ")
        terminal.press(answer)
        code = terminal.end()
        return code, terminal.shown.partition("[y/N]: ")[2].removeprefix(
            "^C"
        )  # which Linux shows, or does not any more


def test_nothing_is_done_unless_the_answer_is_yes(shop: Console, database_url: str) -> None:
    assert answered(shop, DROP, "Drop post?", ENTER) == (1, f"\n{NOTHING}")
    assert answered(shop, DROP, "Drop post?", END_OF_FILE) == (1, f"\n{NOTHING}")
    assert answered(shop, DELETE, "Delete 3 rows?", INTERRUPT) == (130, "")
    with Terminal(shop.folder, *DROP) as terminal:
        terminal.wait_for("[y/N]: ")
        terminal.press(f"perhaps{ENTER}")
        terminal.wait_for("Error: invalid input\nDrop post? [y/N]: ")
        terminal.press(f"n{ENTER}")
        assert terminal.end() == 1
        assert terminal.shown.endswith(f"Drop post? [y/N]: n\n{NOTHING}")
    errors = shop.folder / "errors"
    with errors.open("wb") as file, Terminal(shop.folder, *DROP, errors=file.fileno()) as terminal:
        assert (terminal.end(), terminal.shown) == (1, ""), "nobody is asked who cannot see the question"
    for refused in (errors.read_text(), shop(*DROP).err):
        assert "error: Drop post? There is no terminal to ask on.\n  fix: Confirm with --yes." in refused
    assert rows(database_url) == {"pending": 3}
    assert "post" in outboxes(database_url)
    code, shown = answered(shop, (*DELETE[:3], "skip", "ship"), "Skip 3 rows?", f"yes{ENTER}")
    assert (code, shown.splitlines()[0], ", of 3." in shown) == (0, "yes", True)
    assert rows(database_url) == {"skipped": 3}


@pytest.fixture
def noisy_shop(stage: Console, database_url: str) -> Console:
    """The same, with a job, a task and an outbox that have failed with errors that would steer a terminal."""
    on(noisy.app, database_url, noisy.put_and_fail)
    return stage


def on_terminal(shop: Console, *arguments: str) -> str:
    with Terminal(shop.folder, "--app", "programs.noisy", *arguments) as terminal:
        assert terminal.end() == 0, terminal.shown
        return terminal.shown


STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
LISTS = {
    ("jobs", "list", "--pool", noisy.pool.name): ("id", "attempt", "run at", "error or arguments"),
    ("tasks", "records", "read"): ("task", "key", "error"),
    ("outbox", "messages", "notes"): ("number", "kind", "error"),
}


def test_lists_fit_any_terminal_with_whole_names_and_ids(noisy_shop: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns without room stand below their row, with their names."""
    jobs = next(iter(LISTS))
    (job,) = noisy_shop.ok("--app", "programs.noisy", *jobs, "--json").json["jobs"]
    shown: dict[tuple[str, ...], tuple[str, ...]] = {
        **{command: (*words, "ConnectionError") for command, words in LISTS.items()},
        ("jobs", "show", job["id"]): (job["id"],),
        ("config", "--database", "sqlite:///x.db"): ("database", "require_access", "Refuse"),
    }
    shown[jobs] += (job["id"],)
    monkeypatch.setenv("COLUMNS", "60")
    for command, words in shown.items():
        lines = re.sub(r"\x1b\[\d*m", "", on_terminal(noisy_shop, *command)).splitlines()
        assert max(map(len, lines)) <= 60 or command[:2] == ("jobs", "show"), lines
        text = " ".join(" ".join(lines).split())
        assert all(word in text for word in words), lines


def test_errors_do_not_steer_the_terminal_and_their_lines_are_indented(noisy_shop: Console) -> None:
    program = ("--app", "programs.noisy")
    (job,) = noisy_shop.ok(*program, *next(iter(LISTS)), "--json").json["jobs"]
    (record,) = noisy_shop.ok(*program, "tasks", "records", "read", "--json").json["records"]
    assert noisy.ERROR in job["error"], "JSON has them as they are"
    assert not STEERING.search(noisy_shop.ok(*program, *next(iter(LISTS)), "--json").out), "though as escapes"
    shown = {
        command: noisy_shop(*program, *command)
        for command in (
            *LISTS,
            ("jobs", "show", job["id"]),
            ("tasks", "show", "read", record["key"]),
            ("outbox", "show", "notes"),
            ("data", "note_of_noisy"),
        )
    }
    for command, result in shown.items():
        assert not STEERING.search(result.out + result.err), command
        assert re.search(rf"{re.escape(noisy.SHOWN)}(?!␍)", result.out), (command, result.out)
        if "show" in command:
            assert re.search(r"^ {18}second line\n {18}third line$", result.out, re.MULTILINE), result.out
    failed = noisy_shop(*program, "run", "send", "to=x")
    assert (failed.code, noisy.SHOWN in failed.err) == (1, True)
    assert not STEERING.search(failed.err)
    for arguments, read in (
        (("run", "say"), json.loads),
        (("data", "note_of_noisy", "--json"), lambda out: json.loads(out)[0]["text"]),
        (("data", "note_of_noisy", "--jsonl"), lambda out: json.loads(out)["text"]),
    ):
        out = noisy_shop.ok(*program, *arguments).out
        assert read(out) == noisy.ERROR, arguments
        assert not STEERING.search(out), arguments


# ----- top

ALTERNATE, BACK, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


def test_what_goes_on_is_drawn_again_until_a_key_ends_it(stage: Console, database_url: str) -> None:
    async def fill(test: TestApp) -> None:
        await everynoun.texts.enqueue_batch(test, everynoun.send, [{"to": "good"}] * 4321)

    stage.ok("--app", "programs.everynoun", "migrate")
    with Terminal(stage.folder, "--app", "programs.everynoun", "top", "--interval", "0.2") as terminal:
        terminal.wait_for("texts")
        assert ALTERNATE in terminal.shown
        assert "4,321" not in terminal.shown
        on(everynoun.app, database_url, fill)
        terminal.wait_for("4,321")
        assert BACK not in terminal.shown
        terminal.press("q")
        assert terminal.end() == 0
        left = terminal.shown.rpartition("4,321")[2]
        assert BACK in left
        assert CURSOR in left
        assert "Traceback" not in left


RENAMED = [("phone: str\n", "mobile: str\n"), ("phone: str,", "mobile: str,"), ("phone=phone", "mobile=mobile")]


@pytest.mark.parametrize("answer", ["y", "n"])
def test_dev_asks_whether_a_field_was_renamed(bookings: Console, answer: str) -> None:
    bookings.ok("run", "book", "customer=Ada", "phone=+420 123")
    bookings.write_bookings(*RENAMED)
    with Terminal(bookings.folder, "dev", "--no-reload", "--port", "0") as terminal:
        terminal.wait_for(
            "booking.phone is not declared any more, and mobile is new. Rename the column to mobile? [y/N]: "
        )
        terminal.press(answer + ENTER)
        if answer == "n":
            assert terminal.end() == 1
            assert "booking.phone is not declared any more, but stored as NOT NULL" in terminal.shown
            return
        terminal.wait_for("renamed: booking.phone is mobile now, with its values.")
        terminal.wait_for("Ctrl-C stops it.")
        terminal.press(INTERRUPT)
        assert terminal.end() == 0
    (booking,) = bookings.ok("run", "upcoming", "customer=Ada").json
    assert booking["mobile"] == "+420 123"
    bookings.ok("run", "book", "customer=Bob", "mobile=+420 456")


def test_dev_renames_what_a_task_watches(shell: Console) -> None:
    program = """
from penstock import App, Id, MutationCtx, QueryCtx, Table, TaskCtx

app = App()


class Order(Table):
    state: str
    note: str = ""


class Told(Table):
    what: str


@app.mutation
async def put(ctx: MutationCtx, state: str) -> Id[Order]:
    return await ctx.db.insert(Order(state=state))


@app.reactive_task(Order, watch=("state",), filter=lambda row: row.state == "paid")
async def tell(ctx: TaskCtx[Order]) -> None:
    order = await ctx.get_document()
    await ctx.run_mutation(note_down, order.state)


@app.internal_mutation
async def note_down(ctx: MutationCtx, what: str) -> None:
    await ctx.db.insert(Told(what=what))


@app.query
async def told(ctx: QueryCtx) -> list[str]:
    return [one.what for one in await ctx.db.query(Told).take(10)]
"""
    shell.write("orders.py", program)
    shell.ok("migrate")
    shell.ok("run", "put", "state=new")
    changed = (
        program.replace("state: str\n", "status: str\n")
        .replace("state=state", "status=state")
        .replace('("state",)', '("status",)')
    )
    shell.write("orders.py", changed.replace(".state", ".status"))
    with Terminal(shell.folder, "dev", "--no-reload", "--port", "0") as terminal:
        terminal.wait_for("Rename the column to status? [y/N]: ")
        terminal.press("y" + ENTER)
        terminal.wait_for("Ctrl-C stops it.")
        shell.ok("run", "put", "state=paid")
        while not (said := shell.ok("run", "told").json):
            pass
        assert said == ["paid"]
        terminal.press(INTERRUPT)
        assert terminal.end() == 0
