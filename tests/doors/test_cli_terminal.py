"""Commands that ask before they do something, on a real terminal: every answer that a person may give, and none."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from stage import desk, mailroom, noisy
from stage.terminal import END_OF_FILE, ENTER, INTERRUPT, Terminal

from penstock import App, TaskFilter
from penstock.clock import SystemClock
from penstock.testing import TestApp, TestClock
from penstock.wire.outgoing import Format, encode_result

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)

NOTHING = "error: Nothing was done.\n"
DROP = ("--app", "stage.mailroom", "outbox", "drop", "post")
DELETE = ("--app", "stage.desk:app", "tasks", "delete", "ship")
ANSWERS = pytest.mark.parametrize(
    ("answer", "code", "shown"),
    [
        (f"n{ENTER}", 1, f"n\n{NOTHING}"),
        (ENTER, 1, f"\n{NOTHING}"),
        (END_OF_FILE, 1, f"\n{NOTHING}"),
        (INTERRUPT, 130, ""),
    ],
    ids=["no", "nothing", "end of file", "interrupt"],
)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    mailroom.failing.clear()
    yield
    mailroom.failing.clear()


@pytest.fixture
def stage(console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Console:
    """Where programs of the stage are found."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return console


@pytest.fixture
def shop(stage: Console, database_url: str) -> Console:
    """The same, with letters that have failed, and orders that wait."""

    async def order(test: TestApp) -> None:
        await test.run_mutation(desk.put, ["a", "b", "c"])
        await test.plan()

    on(mailroom.app, database_url, mailroom.put_and_fail)
    on(desk.app, database_url, order)
    return stage


def on(app: App, url: str, work: Callable[[TestApp], Awaitable[Any]]) -> Any:
    """Do something with an app on the database of the commands."""

    async def main() -> Any:
        async with TestApp(app, url, clock=TestClock(SystemClock().now())) as test:
            return await work(test)

    return asyncio.run(main())


def outboxes(url: str) -> dict[str, Any]:
    return {one.name: one for one in on(mailroom.app, url, mailroom.app.outboxes.list)}


def rows(url: str) -> dict[str, int]:
    counted: dict[str, int] = on(desk.app, url, lambda test: desk.app.tasks.count(test, TaskFilter(task="ship")))
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


@ANSWERS
def test_nothing_is_done_unless_the_answer_is_yes(
    shop: Console, database_url: str, answer: str, code: int, shown: str
) -> None:
    assert answered(shop, DROP, "Drop post?", answer) == (code, shown)
    assert answered(shop, DELETE, "Delete 3 rows?", answer) == (code, shown)
    assert rows(database_url) == {"pending": 3}
    assert "post" in outboxes(database_url)


def test_a_question_is_asked_until_it_is_answered(shop: Console, database_url: str) -> None:
    with Terminal(shop.folder, *DROP) as terminal:
        terminal.wait_for("[y/N]: ")
        terminal.press(f"perhaps{ENTER}")
        terminal.wait_for("Error: invalid input\nDrop post? [y/N]: ")
        terminal.press(f"n{ENTER}")
        assert terminal.end() == 1
        assert terminal.shown.endswith(f"Drop post? [y/N]: n\n{NOTHING}")
    assert "post" in outboxes(database_url)


def test_outboxes_are_changed_once_the_answer_is_yes(shop: Console, database_url: str) -> None:
    outbox = ("--app", "stage.mailroom", "outbox")
    (failed,) = shop.ok(*outbox, "messages", "post", "--json").json["messages"]
    number = str(failed["number"])
    for command, question, before, after in (
        (
            ("skip", "post", number, "--reason", "x"),
            f"Skip message {number} of post for good?",
            "",
            f"Message {number} of post is skipped.",
        ),
        (
            ("move", "post", "--to", "end"),
            "Move post to end?",
            "post has 3 messages to deliver.\nNone of these will be delivered.\n",
            "post is moved, and has no messages to deliver.",
        ),
        (
            ("rebuild", "counts"),
            "Rebuild counts?",
            "The effects of counts are cleared, and incomplete until all rows are delivered.\n",
            "counts starts again with all rows.",
        ),
        (
            ("drop", "files"),
            "Drop files?",
            "files has no messages to deliver. 2 messages parked will be forgotten.\n",
            "files is dropped.",
        ),
    ):
        with Terminal(shop.folder, *outbox, *command) as terminal:
            terminal.wait_for("[y/N]: ")
            assert terminal.shown == f"{before}{question} [y/N]: "
            terminal.press(f"y{ENTER}")
            assert terminal.end() == 0, terminal.shown
            assert after in terminal.shown
    found = outboxes(database_url)
    assert found["files"].parked == 0, "a program that declares it has made it anew"
    assert found["post"].messages == 0
    assert found["counts"].older_rows == 0


def test_rows_of_tasks_are_changed_once_the_answer_is_yes(shop: Console, database_url: str) -> None:
    for verb, done in (("skip", {"skipped": 3}), ("retry", {"pending": 3}), ("delete", {})):
        code, shown = answered(shop, (*DELETE[:3], verb, "ship"), f"{verb.capitalize()} 3 rows?", f"yes{ENTER}")
        assert (code, shown.splitlines()[0]) == (0, "yes")
        assert ", of 3." in shown
        assert rows(database_url) == done


def test_the_other_commands_that_ask_end_with_ctrl_c_too(bookings: Console) -> None:
    for _ in range(2):
        bookings.ok("run", "book", "customer=ada", "phone=1")
    bookings.write("rows.jsonl", '{"customer": "eve", "phone": "2"}\n')
    jobs, rows = bookings.ok("jobs", "--json").json["counts"], bookings.ok("data", "booking", "--json").out
    for command, question in (
        (("jobs", "cancel", "--state", "pending"), "Cancel 2 jobs?"),
        (("import", "booking", "rows.jsonl", "--replace"), "Delete all 2 rows of booking?"),
    ):
        assert answered(bookings, command, question, INTERRUPT) == (130, "")
        assert answered(bookings, command, question, END_OF_FILE) == (1, f"\n{NOTHING}")
    assert bookings.ok("jobs", "--json").json["counts"] == jobs
    assert bookings.ok("data", "booking", "--json").out == rows


def test_nobody_is_asked_who_cannot_see_the_question(shop: Console, database_url: str) -> None:
    for command, question in ((DROP, "Drop post?"), (DELETE, "Delete 3 rows?")):
        errors = shop.folder / "errors"
        with errors.open("wb") as file, Terminal(shop.folder, *command, errors=file.fileno()) as terminal:
            assert (terminal.end(), terminal.shown) == (1, "")
        for refused in (errors.read_text(), shop(*command).err):
            assert f"error: {question} There is no terminal to ask on.\n  fix: Confirm with --yes." in refused
    assert rows(database_url) == {"pending": 3}
    assert "post" in outboxes(database_url)


def test_a_list_is_readable_on_any_terminal(shop: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names stay whole: columns without room stand below their row."""
    for columns in (60, 94, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        with Terminal(shop.folder, "--app", "stage.mailroom", "outbox") as terminal:
            assert terminal.end() == 0
        lines = terminal.shown.splitlines()
        for name in mailroom.NAMES:
            assert any(line.startswith(f"{name} ") for line in lines), (columns, terminal.shown)
        assert "letter_of_mailroom" in terminal.shown, terminal.shown
        assert all(len(plain) <= columns for plain in unstyled(terminal.shown)), terminal.shown


@pytest.fixture
def noisy_shop(stage: Console, database_url: str) -> Console:
    """The same, with a job, a task and an outbox that have failed with errors that would steer a terminal."""
    on(noisy.app, database_url, noisy.put_and_fail)
    return stage


def on_terminal(shop: Console, *arguments: str) -> str:
    with Terminal(shop.folder, "--app", "stage.noisy", *arguments) as terminal:
        assert terminal.end() == 0, terminal.shown
        return terminal.shown


STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
LISTS = {
    ("jobs", "list", "--pool", noisy.pool.name): ("id", "attempt", "run at", "error or arguments"),
    ("tasks", "records", "read"): ("task", "key", "error"),
    ("outbox", "messages", "notes"): ("number", "kind", "error"),
}


@pytest.mark.parametrize("columns", [60, 80, 100, 140])
def test_a_list_shows_its_errors_on_any_terminal(
    noisy_shop: Console, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns without room stand below their row, with their names."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for command, headers in LISTS.items():
        lines = unstyled(on_terminal(noisy_shop, *command))
        shown = "\n".join(lines)
        assert "ConnectionError" in shown, (columns, shown)
        assert all(re.search(rf"\b{header}\b", shown) for header in headers), (columns, shown)
        assert all(len(line) <= columns for line in lines), shown


def unstyled(shown: str) -> list[str]:
    return re.sub(r"\x1b\[\d*m", "", shown).splitlines()


def test_functions_with_their_access_and_settings_fit_a_terminal(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
from penstock import App, Id, MutationCtx, Table, owner_of, signed_in
app = App()
class Team(Table):
    captain: str
@app.mutation(access=signed_in & owner_of(Team, "team", field="captain"))
async def change_the_name_of_a_team(ctx: MutationCtx, team: Id[Team], name: str, notify: bool = True) -> Id[Team]:
    return team
"""
    console.write("teams.py", program)
    monkeypatch.setenv("COLUMNS", "80")
    for command, words in (
        ("functions", ("mutation", "signed_in", 'field="captain")', "notify:", "Id[Team]")),
        ("config", ("database", "require_access", "Refuse")),
    ):
        with Terminal(console.folder, command) as terminal:
            assert terminal.end() == 0, terminal.shown
        lines = re.sub(r"\x1b\[\d*m", "", terminal.shown).splitlines()
        assert max(map(len, lines)) <= 80, terminal.shown
        assert {*words} <= {*" ".join(lines).split()}, terminal.shown


def test_ids_are_whole(noisy_shop: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (job,) = noisy_shop.ok("--app", "stage.noisy", *next(iter(LISTS)), "--json").json["jobs"]
    for command in (next(iter(LISTS)), ("jobs", "show", job["id"])):
        assert job["id"] in on_terminal(noisy_shop, *command)


def test_errors_do_not_steer_the_terminal_and_their_lines_are_indented(noisy_shop: Console) -> None:
    program = ("--app", "stage.noisy")
    (job,) = noisy_shop.ok(*program, *next(iter(LISTS)), "--json").json["jobs"]
    (record,) = noisy_shop.ok(*program, "tasks", "records", "read", "--json").json["records"]
    assert noisy.ERROR in job["error"], "JSON has them as they are"
    assert not STEERING.search(noisy_shop.ok(*program, *next(iter(LISTS)), "--json").out), "though as escapes"
    shown = {
        command: noisy_shop(*program, *command)
        for command in (
            *LISTS,
            ("jobs", "show", job["id"]),
            ("jobs", "wait", job["id"]),
            ("tasks", "show", "read", record["key"]),
            ("tasks", "explain", "read", record["key"]),
            ("outbox", "show", "notes"),
            ("data", "note_of_noisy"),
        )
    }
    for command, result in shown.items():
        assert not STEERING.search(result.out + result.err), command
        assert re.search(rf"{re.escape(noisy.SHOWN)}(?!␍)", result.out), (command, result.out)
        if "show" in command:
            assert re.search(r"^ {18}second line\n {18}third line$", result.out, re.MULTILINE), result.out


def test_the_error_of_a_call_does_not_steer_the_terminal(noisy_shop: Console) -> None:
    failed = noisy_shop("--app", "stage.noisy", "run", "send", "to=x")
    assert failed.code == 1
    assert noisy.SHOWN in failed.err
    assert not STEERING.search(failed.err)


def test_json_of_results_and_rows_has_all_characters_and_does_not_steer_the_terminal(noisy_shop: Console) -> None:
    for command, read in (
        (("run", "say", "--json"), json.loads),
        (("run", "say"), json.loads),
        (("data", "note_of_noisy", "--json"), lambda out: json.loads(out)[0]["text"]),
        (("data", "note_of_noisy", "--jsonl"), lambda out: json.loads(out)["text"]),
    ):
        out = noisy_shop.ok("--app", "stage.noisy", *command).out
        assert read(out) == noisy.ERROR, command
        assert not STEERING.search(out), command


def test_json_is_the_same_as_that_of_the_server(shop: Console, database_url: str) -> None:
    found = shop.ok("--app", "stage.mailroom", "outbox", "--json").json["outboxes"]
    expected = json.loads(encode_result(list(outboxes(database_url).values()), Format.CLEAN))
    for name in ("keep_for", "delivered_at", "retry_at", "spec", "error"):
        assert [one[name] for one in found] == [one[name] for one in expected], name
    assert found[0]["keep_for"] == "PT0S"
    assert found[0]["delivered_at"].endswith("Z")


def test_states_are_counted_in_one_order(shop: Console, database_url: str) -> None:
    async def vary(test: TestApp) -> None:
        await desk.app.tasks.skip(test, TaskFilter(task="ship"), everything=True)
        await test.run_mutation(desk.put, ["d", "e"])
        await test.run_until_idle()

    on(desk.app, database_url, vary)
    counts = shop.ok(*DELETE[:2], "tasks", "records", "--count", "--json").json["counts"]
    assert list(counts) == ["success", "skipped"], "not as they are found, and not by name"


def test_what_is_shown_is_read_whole_wherever_it_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.read
    monkeypatch.setattr(os, "read", lambda file, _most: read(file, 1))
    with Terminal(tmp_path, "žluťoučký") as terminal:
        assert terminal.end() == 2
        assert "žluťoučký" in terminal.shown
        assert "\r" not in terminal.shown
