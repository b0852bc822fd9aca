"""Each operation does the same on each door: on the command line, over HTTP, and on the dashboard."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from doors.cli_fixtures import Console, Result
from programs.admin import SECRET, TOKEN
from programs.everynoun import app, delivery, failing, mail, order, put, send, texts

from penstock import asgi_app
from penstock.clock import SystemClock
from penstock.dashboard.page import Page
from penstock.dashboard.pages.every import PAGES
from penstock.identity.api_key import hash_of
from penstock.operations.every import OPERATIONS
from penstock.operations.operation import Operation, Parameter
from penstock.store.session import reading
from penstock.testing import TestApp, TestClock

HERE = "http://localhost"
NAMES = ["good", "bad", "worse"]
FAILED: Mapping[str, Any] = {"task": "ship", "state": ["failed"]}

# What is given to each operation that changes something, in words of JSON; and what the command and the form tell then.
# `JOB`, `LATER`, `ROW`, `NUMBER` and `FENCE` stand for a failed job, one that is due later, the row and the message
# that failed, and the holder of a lock. A None is not compared.
GIVEN: tuple[tuple[str, Mapping[str, Any], str | None, str | None], ...] = (
    ("tasks retry", FAILED, "1 row retried, of 1.", "1 row retried."),
    ("tasks retry", {"everything": True}, "4 rows retried, of 4.", None),
    ("tasks retry", {"task": "ship", "rows": 'name == "good"'}, "1 row retried, of 1.", "1 row retried."),
    ("tasks cancel", {"task": "ship"}, "1 row asked to be canceled, of 1.", "1 row asked to be canceled."),
    ("tasks skip", {"task": "ship", "state": ["pending"]}, "1 row skipped, of 1.", "1 row skipped."),
    ("tasks delete", FAILED, "1 row forgotten, of 1.", None),
    ("tasks pause", {"task": "ship"}, "ship is paused. Running ones continue; no other ones start.",
     "ship is paused. Running runs continue."),
    ("tasks resume", {"task": "ship"}, "ship runs again. Deferred runs that are due now: 0.",
     "ship runs again. Deferred runs that are due now: 0."),
    ("tasks reconcile", {"task": "ship"}, "All rows of ship will be checked by the planner.",
     "The planner looks at all rows of ship."),
    ("outbox retry", {"outbox": "files", "number": ["NUMBER"]}, "1 message of files will be retried.",
     "1 message will be retried."),
    ("outbox skip", {"outbox": "files", "number": "NUMBER", "reason": "by hand"}, "Message NUMBER of files is skipped.",
     "Message NUMBER is skipped."),
    ("outbox pause", {"outbox": "ledger"}, "ledger is paused. The change feed keeps new messages, and grows.",
     "ledger is paused. New messages are kept."),
    ("outbox resume", {"outbox": "ledger"}, "ledger is resumed.", "ledger is resumed."),
    ("outbox move", {"outbox": "ledger", "to": "beginning"}, "ledger is moved, and has 4 messages to deliver.",
     "ledger is moved, and has 4 messages to deliver."),
    ("outbox resend", {"outbox": "files", "where": 'name == "good"'}, "1 row will be sent again by files.",
     "1 row will be sent again."),
    ("outbox rebuild", {"outbox": "counts"}, "penstock outbox show counts shows its progress.",
     "counts starts again with all rows."),
    ("outbox drop", {"outbox": "files"}, "This program declares it, and creates it again at its start.", None),
    ("crons run", {"cron": "extra"}, None, None),
    ("crons pause", {"cron": "extra"}, "extra is paused. A current run continues; no other one starts.",
     "extra is paused. A run in progress continues."),
    ("crons resume", {"cron": "extra"}, "extra runs again.", "extra runs again, from its next planned time."),
    ("crons remove", {"cron": "extra"}, "extra is removed.", None),
    ("pools set", {"pool": "mail", "max_parallelism": 7}, "mail runs at most 7 jobs at once.", None),
    ("pools pause", {"pool": "mail"}, "mail is paused. Running jobs continue; no other ones start.", None),
    ("pools resume", {"pool": "mail"}, "mail starts jobs again.", None),
    ("jobs retry", {"job": ["JOB"]}, "JOB is retried.", "It is retried."),
    ("jobs retry", {"state": "failed", "pool": "mail", "function": "send", "since": "1h"}, "1 job retried, of 1.",
     "1 job retried."),
    ("jobs cancel", {"state": "pending", "pool": "texts"}, "Asked for 1 job to be canceled.",
     "Asked for 1 job to be canceled."),
    ("workflows send", {"run": "RUN", "event": "paid", "payload": "7"}, "paid is sent to RUN.", "paid is sent."),
    ("workflows cancel", {"run": "RUN"}, "Asked for RUN to be canceled; it was pending.",
     "Asked for it to be canceled."),
    ("workflows retry", {"run": "LOST"}, "LOST goes on. 1 record deleted.", None),
    ("workflows fork", {"run": "LOST", "step": 1}, "begins with the history of LOST.", None),
    ("locks release", {"key": "account:ada", "fence": "FENCE"}, "account:ada is free.", None),
    ("keys revoke", {"name": "billing"}, "billing is revoked.", None),
    ("keys rotate", {}, "by all processes within a minute.", None),
)  # fmt: skip
BY_NAME = {f"{one.noun} {one.verb}".strip(): one for one in OPERATIONS}


# ----- the world, and what is seen of it


class World:
    """A database in which something can be done to each noun, copied for each door."""

    def __init__(self, folder: Path) -> None:
        self._first, self._count = folder / "first.db", 0
        self.names: dict[str, Any] = {}
        asyncio.run(self._make())

    def open(self, path: Path) -> TestApp:
        clock = TestClock(SystemClock().now())
        return TestApp(app, f"sqlite:///{path}", clock=clock, admin_token=SECRET, dev=True)

    def copy(self) -> Path:
        self._count += 1
        copied = self._first.with_name(f"copy{self._count}.db")
        for file in self._first.parent.glob(f"{self._first.name}*"):
            shutil.copy(file, copied.with_name(file.name.replace(self._first.name, copied.name)))
        return copied

    def words(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, with the things that only this world knows."""

        def known(value: Any) -> Any:
            return self.names.get(value, value) if isinstance(value, str) else value

        return {
            name: [known(one) for one in value] if isinstance(value, list) else known(value)
            for name, value in given.items()
        }

    def text(self, text: str) -> str:
        """A text with the names of this world."""
        for name, known in self.names.items():
            text = text.replace(name, str(known))
        return text

    async def _make(self) -> None:
        failing.clear()
        failing.add("bad")
        async with self.open(self._first) as test:
            store, later = test.engine.store, test.clock.now() + timedelta(days=9)
            await test.relay.drain()
            rows = await test.run_mutation(put, NAMES)
            jobs = [await mail.enqueue(test, send, to=to) for to in ("bad", "good")]
            run = await test.scheduler.run_after(timedelta(0), order)
            lost = await test.scheduler.run_after(timedelta(0), delivery, "bad")
            await test.run_until_idle(advance=False, raise_errors=False)
            await test.run_mutation(put, ["late"])
            await test.plan()
            for _ in range(2):
                test.clock.advance(timedelta(seconds=2))
                await test.relay.drain()
            waiting = await texts.with_options(run_at=later).enqueue(test, send, to="good")
            await app.crons.pause(test, "remind")  # its time may come while the test runs
            await app.crons.create(test, "extra", timedelta(days=1), send, {"to": "good"})
            await store.api_keys.create("billing", hash_of("secret"), ["read"], test.clock.now(), None)
            lock = await store.locks.take("account:ada", UUID(int=1), "ada", timedelta(hours=1), test.clock.now())
            (number,) = [one.number for one in (await app.outboxes.messages(test, "files")).messages]
        self.names = {
            "JOB": jobs[0],
            "LATER": waiting,
            "LOST": lost,
            "RUN": run,
            "ROW": rows[1],
            "NUMBER": number,
            "FENCE": lock.fence,
        }


async def seen(test: TestApp) -> dict[str, Any]:
    """All that somebody who looks after the program can see, once its jobs have run."""
    tasks = [(one.name, one.paused, one.reconciling is not None) for one in await app.tasks.list(test)]
    test.clock.advance(timedelta(minutes=10))  # all retries are due
    await test.run_until_idle(advance=False, raise_errors=False)
    store = test.engine.store
    async with reading(store.begin_read) as session:
        locks = await store.locks.list(session, 10)
    records = (await app.tasks.records(test)).records
    jobs = Counter((one.function, one.state.value, len(one.attempts)) for one in await test.jobs())
    return {
        "tasks": tasks,
        "rows": [(one.key, one.state, one.generation) for one in records],
        "outboxes": [
            (one.name, one.paused, one.messages, one.parked, one.older_rows, one.delivered)
            for one in await app.outboxes.list(test)
        ],
        "crons": [(one.name, one.paused, one.job is None) for one in await app.crons.list(test)],
        "pools": [(one.name, one.max_parallelism, one.paused) for one in await test.pools()],
        "jobs": sorted(jobs.items()),
        "locks": [one.key for one in locks],
        "keys": [one.name for one in await store.api_keys.list()],
        "signing": len(await store.signing_keys.list()),
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def _mended(world: World) -> None:
    failing.clear()  # so that all that is tried once more succeeds


# ----- the doors

Telling = Callable[[TestApp, Operation, Mapping[str, Any]], Awaitable[str | None]]
Door = Telling | None


async def in_python(test: TestApp, operation: Operation, given: Mapping[str, Any]) -> None:
    await operation.run(test, {**dict.fromkeys(one.name for one in operation.takes), **given})


async def over_http(test: TestApp, operation: Operation, given: Mapping[str, Any]) -> None:
    async with web(test) as http:
        answer = await http.post(f"/admin{operation.path}", json=given, headers=TOKEN)
        assert answer.status_code == 200, answer.text
    (act,) = await test.engine.store.audit.list(1)
    told = (act.who, act.act, act.about, act.outcome)
    assert told == ("the admin token", f"admin: {operation.noun} {operation.verb}", given, "Done.")


async def by_form(test: TestApp, operation: Operation, given: Mapping[str, Any]) -> str:
    """Send the form; what it tells."""
    page, name = next(ways(operation, given))
    words = {word: value[0] if isinstance(value, list) else str(value) for word, value in given.items()}
    words |= {"since": "1 hour"} if "since" in words else {}
    path = page.path.format(**words)
    async with web(test) as http:
        form = {"act": name, "sure": "yes"}
        answer = await http.post(f"/dashboard{path}", params=words, data=form, headers={"origin": HERE})
        assert answer.status_code == 303, answer.text
    (act,) = await test.engine.store.audit.list(1)
    assert act.act == f"{page.title}: {name}"
    return act.outcome or ""


def ways(operation: Operation, given: Mapping[str, Any]) -> Iterator[tuple[Page, str]]:
    """The pages with a form that does it, if the words of forms say all that is given."""
    of_forms = {one.name for one in operation.takes if one.kind not in {"flag", "part"}}
    for page in PAGES:
        for name, act in page.acts.items():
            has_path = all(f"{{{word}}}" in page.path for word in ("job", "run") if word in given)
            by_path = "{job}" not in page.path or "job" in given
            if act.operation is operation and of_forms >= given.keys() and has_path and by_path and name != "recall":
                yield page, name


def on_the_command_line(
    console: Console, path: Path, operation: Operation, given: Mapping[str, Any], *more: str
) -> Result:
    arguments = [operation.noun] if operation.verb else []
    if (operation.noun, operation.verb) in {("pools", "pause"), ("pools", "resume")}:
        arguments = []
    options, named = list[str](), list[str]()
    for one in operation.takes:
        if one.name in given:
            (options if one.about else named).extend(spelled(one, given[one.name]))
    asks = ["--yes"] if operation.asks is not None else []
    words = [*arguments, operation.verb or operation.noun, *named, *options, *asks, *more]
    return console.ok("--app", "programs.everynoun", "--database", f"sqlite:///{path}", *words)


def spelled(one: Parameter, value: Any) -> list[str]:
    """A parameter as the command line has it."""
    values = [str(it) for it in value] if isinstance(value, list) else [str(value)]
    if not one.about:
        return values
    option, _, negative = (one.spelled or f"--{one.name.replace('_', '-')}").partition("/")
    if one.kind == "flag":
        return [option if value else negative]
    return [option, ",".join(values)]


def web(test: TestApp) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(asgi_app(app, backend=test, dashboard=True), client=("127.0.0.1", 1))
    return httpx.AsyncClient(transport=transport, base_url=HERE)


# ----- what holds


def effect_of(
    world: World, console: Console, door: Door, operation: Operation, given: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """What a door tells of an operation, and what is seen then."""

    async def tell() -> tuple[str | None, dict[str, Any] | None]:
        async with world.open(path) as test:
            if operation.verb == "resume":
                await in_python(test, BY_NAME[f"{operation.noun} pause"], given)
            if door is None:
                return None, None
            told = await door(test, operation, given)
            return told, None if operation.verb == "drop" else await seen(test)  # the next start declares it anew

    path = world.copy()
    told, effect = asyncio.run(tell()) if door or operation.verb == "resume" else (None, None)
    if door is None:
        told = on_the_command_line(console, path, operation, given).err
    return told, effect or asyncio.run(look(world, path))


async def look(world: World, path: Path) -> dict[str, Any]:
    async with world.open(path) as test:
        return await seen(test)


@pytest.mark.parametrize("noun", sorted({name.partition(" ")[0] for name, *_ in GIVEN}))
def test_each_operation_does_the_same_on_each_door(world: World, console: Console, noun: str) -> None:
    """The command line and HTTP have all of them, the dashboard those with a form."""
    untouched = asyncio.run(look(world, world.copy()))
    for name, words, told, told_by_form in (one for one in GIVEN if one[0].startswith(f"{noun} ")):
        operation, given = BY_NAME[name], world.words(words)
        _, effect = effect_of(world, console, over_http, operation, given)
        assert (effect == untouched) is (operation.verb == "resume"), f"{name} {words}: no effect"
        for door, expected in (by_form, told_by_form), (None, told):
            if door is by_form and not any(ways(operation, given)):
                assert told_by_form is None, name
                continue
            said, same = effect_of(world, console, door, operation, given)
            assert same == effect, (name, words, door)
            if expected is not None:
                assert said is not None
                assert said.rstrip("\n").endswith(world.text(expected)), (name, said)


def test_each_change_is_tried() -> None:
    assert {one for one in BY_NAME if BY_NAME[one].changes} == {name for name, *_ in GIVEN}


SHOWN: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("tasks", {}),
    ("tasks records", {"task": "ship", "order": "key", "limit": 3}),
    ("outbox", {}),
    ("outbox show", {"outbox": "files"}),
    ("outbox messages", {"outbox": "files", "state": ["parked"]}),
    ("crons", {}),
    ("pools", {"keys": 5}),
    ("jobs", {"pool": "mail", "limit": 2, "before": "2100-01-01"}),
    ("jobs show", {"job": "JOB"}),
    ("locks", {"limit": 5}),
    ("keys", {}),
    ("keys signing", {}),
)
MOVING = {"seconds", "rate"}  # what changes from one moment to the next


def test_commands_and_requests_show_the_same(world: World, console: Console) -> None:
    async def get(operation: Operation, given: Mapping[str, Any]) -> Any:
        async with world.open(world.copy()) as test, web(test) as http:
            answer = await http.get(f"/admin{operation.path}", params=given, headers=TOKEN)
            assert answer.status_code == 200, answer.text
            return answer.json()

    for name, words in SHOWN:
        operation, given = BY_NAME[name], world.words(words)
        command = on_the_command_line(console, world.copy(), operation, given, "--json")
        assert still(command.json) == still(asyncio.run(get(operation, given))), name


def still(value: Any) -> Any:
    """JSON without the numbers that change from one moment to the next."""
    if isinstance(value, dict):
        return {name: still(one) for name, one in value.items() if name not in MOVING}
    return [still(one) for one in value] if isinstance(value, list) else value


def test_each_operation_is_on_the_page_of_the_admin_interface() -> None:
    text = (Path(__file__).parents[2] / "docs" / "admin.md").read_text("utf-8")
    rows = re.findall(r"^\| `(?:GET |POST )?(/admin/[\w/]+)`", text, re.MULTILINE)
    for operation in OPERATIONS:
        assert f"/admin{operation.path}" in rows, operation.path
