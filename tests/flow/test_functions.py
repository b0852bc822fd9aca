"""Functions: what they take and give, that they run whole or not at all, and again from scratch if they conflict."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from flow import process_actions
from pydantic import BaseModel
from stage.stories import tell_in

from penstock import (
    App,
    ApplicationError,
    ArgumentsInvalid,
    Conflict,
    ContextError,
    FunctionNotFound,
    Id,
    Index,
    LimitExceeded,
    MutationCtx,
    NonRetryableError,
    QueryCtx,
    ResultInvalid,
    Table,
    UniqueViolation,
    WorkerLost,
)
from penstock.testing import TestApp, raising

INT64 = 2**63


class Note(Table):
    text: str
    number: int = 0

    by_text = Index("text", unique=True)


class Stamp(BaseModel):
    at: datetime
    texts: list[str] = []


app = OPENED = App()
write, read, act = tell_in(app)
ran: list[Any] = []


@app.mutation
async def note(ctx: MutationCtx, text: str, number: int = 7, *, again: bool = False) -> Id[Note]:
    ran.append((text, number, again))
    return await ctx.db.insert(Note(text=text, number=number))


@app.query
async def count(ctx: QueryCtx, text: str | None = None) -> int:
    notes = ctx.db.query(Note)
    return await (notes if text is None else notes.with_index(Note.by_text, text=text)).count()


@app.mutation
async def broken_promise(ctx: MutationCtx, result: Any) -> int:
    await ctx.db.insert(Note(text="x"))
    await ctx.scheduler.run_after(timedelta(0), note, text="later")
    result_of_anything: int = result
    return result_of_anything


@app.internal_mutation
async def collect_into(ctx: MutationCtx, given: Any, texts: list[str], stamp: Stamp) -> list[int]:
    given.append(1)
    texts.append("x")
    stamp.texts.append("x")
    return [len(given), len(texts), len(stamp.texts)]


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


# ----- what goes in


WRONG: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    (("a", 1, True, 5), {}),
    (("a",), {"text": "b"}),
    (("a",), {"unknown": 1}),
    (("a", INT64), {}),
]
WRONG_TEXTS: list[str | bytes] = [
    "", "[]", "null", "{", "{}", '{"text": "a", "number": 9223372036854775808}', '{"text": "a", "number": NaN}',
    '{"text": "\\ud800"}', '{"text": "a"} x', '{"text": ' + "[" * 5000 + "]" * 5000 + "}", "\ufeff{}",
    b'{"text": "\xff"}',
]  # fmt: skip


async def test_wrong_arguments_are_refused_before_anything_happens(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url) as backend:
        for args, kwargs in WRONG:
            with pytest.raises(ArgumentsInvalid):
                await backend.run_mutation(note, *args, **kwargs)
            with pytest.raises(ArgumentsInvalid):
                await backend.scheduler.run_after(timedelta(0), note, *args, **kwargs)
            with pytest.raises(ArgumentsInvalid):
                await backend.run_mutation(write, lambda ctx, a=args, k=kwargs: ctx.run_mutation(note, *a, **k))
        for text in WRONG_TEXTS:
            with pytest.raises(ArgumentsInvalid):
                await backend.dispatch.call(note.name, None, text)
        with pytest.raises(ArgumentsInvalid) as caught:
            await backend.dispatch.call(note.name, None, '{"text": 5, "number": "secret", "unknown": "secret"}')
        assert {detail["loc"] for detail in caught.value.facts["errors"]} == {("text",), ("number",), ("unknown",)}
        assert caught.value.facts["function"] == note.name
        assert "secret" not in str(caught.value) + repr(caught.value.facts)
        assert ran == []
        assert await backend.run_query(count) == 0
        assert await backend.jobs() == []
        await backend.run_mutation(note, "b", 1)
        await backend.run_mutation(note, number=3, text="d")
        await backend.dispatch.call(note.name, None, '{"text": "e", "again": true}')
        assert ran == [("b", 1, False), ("d", 3, False), ("e", 7, True)]


# ----- whole, or not at all


class Boom(Exception):
    """A user's own error."""


async def test_an_error_or_a_broken_promise_undoes_everything(database_url: str) -> None:
    errors = [Boom("x"), ApplicationError({"seats": 0}), asyncio.CancelledError(), UniqueViolation("z")]
    async with TestApp(app, database_url) as backend:
        for error in errors:

            async def story(ctx: MutationCtx, error: BaseException = error) -> None:
                await note(ctx, "helped", number=3)
                assert await count(ctx) == 1
                await ctx.scheduler.run_after(timedelta(0), note, text="later")
                raise error

            with pytest.raises(type(error)) as caught:
                await backend.run_mutation(write, story)
            assert caught.value is error, "it reaches the caller as it is"
        for result in ("5", None, True):
            with pytest.raises(ResultInvalid, match="broken_promise returned") as refused:
                await backend.run_mutation(broken_promise, result)
            assert ("add | None to the annotation" in str(refused.value)) is (result is None)
        assert await backend.run_query(count) == 0
        assert await backend.jobs() == []

        async def catch(ctx: MutationCtx) -> None:
            with pytest.raises(ResultInvalid):
                await ctx.run_mutation(broken_promise, "x")
            await ctx.db.insert(Note(text="kept"))

        await backend.run_mutation(write, catch)
        assert await backend.run_query(count, "kept") == await backend.run_query(count) == 1
        assert await backend.jobs() == []
        assert await backend.run_mutation(broken_promise, 5) == 5


async def test_a_function_is_run_as_what_it_is(sqlite_url: str) -> None:
    async def helper(ctx: Any) -> None:
        """Not a function of an app."""

    async with TestApp(app, sqlite_url) as backend:
        run: Any = backend
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: run.run_query(note, "x"),
            lambda: run.run_action(note, "x"),
            lambda: run.run_mutation(count),
            lambda: run.run_query(helper),
            lambda: run.run_mutation(write, lambda ctx: ctx.run_query(note, "x")),
            lambda: run.run_mutation(write, lambda ctx: ctx.run_mutation(helper)),
            lambda: run.run_action(act, lambda ctx: ctx.run_query(note, "x")),
        ]
        for call in calls:
            with pytest.raises(ContextError):
                await call()
        for path in (write.name, "", "a:b:c", "note", f"{note.name} ", note.name.upper()):
            with pytest.raises(FunctionNotFound, match="Could not find public function"):
                await backend.dispatch.call(path, None, "{}")
        with pytest.raises(FunctionNotFound, match="is a mutation"):
            await backend.dispatch.call(note.name, count.kind, "{}")
        assert await backend.dispatch.call(count.name, count.kind, "{}") == 0


# ----- again, from scratch


async def test_a_retry_repeats_time_chance_and_arguments(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        seen: list[Any] = []

        async def moment(ctx: MutationCtx) -> Any:
            return ctx.now(), ctx.random.random()

        async def story(ctx: MutationCtx) -> Any:
            backend.clock.advance(timedelta(seconds=5))
            seen.append((await moment(ctx), await ctx.run_mutation(write, moment), ctx.random.randint(0, 10**9)))
            await ctx.db.insert(Note(text=str(len(seen))))

        with raising("commit.before", Conflict("staged"), times=3):
            await backend.run_mutation(write, story)
        assert seen == [seen[0]] * 4
        assert await backend.run_query(count, "4") == await backend.run_query(count) == 1, "the others left nothing"
        await backend.run_mutation(write, story)
        assert seen[4] != seen[0], "another execution has its own"


async def test_a_conflict_is_tried_as_often_as_the_settings_say(database_url: str) -> None:
    async with TestApp(app, database_url, conflict_attempts=3) as backend:
        with (
            raising("commit.before", Conflict("staged"), times=99),
            pytest.raises(Conflict, match="each of 3 attempts"),
        ):
            await backend.run_mutation(note, "x")
        assert len(ran) == 3
        assert await backend.run_query(count) == 0
        for error in (Boom(), UniqueViolation("x"), LimitExceeded("x")):
            ran.clear()
            with raising("commit.before", error, times=1), pytest.raises(type(error)):
                await backend.run_mutation(note, "y")
            assert len(ran) == 1, "other errors are not tried again"

        given: list[int] = []
        texts: list[str] = []
        kept = Stamp(at=datetime(2030, 1, 1, tzinfo=UTC))
        with raising("commit.before", Conflict("staged"), times=2):
            assert await backend.run_mutation(collect_into, given, texts, kept) == [1, 1, 1], "each from the beginning"
        assert (given, texts, kept.texts) == ([], [], []), "what the caller holds is left alone"


async def test_a_function_cannot_swallow_a_conflict(postgres_url: str) -> None:
    async with TestApp(app, postgres_url) as backend:
        note_id = await backend.run_mutation(note, "a", 0)
        attempts = 0

        async def story(ctx: MutationCtx) -> None:
            nonlocal attempts
            attempts += 1
            row = await ctx.db.get(Note, note_id)
            assert row is not None
            if attempts % 2:
                await backend.run_mutation(write, lambda other: other.db.patch(Note, note_id, number=attempts * 10))

            async def bump(inner: MutationCtx) -> None:
                await inner.db.patch(Note, note_id, number=row.number + 1)

            try:
                await (ctx.run_mutation(write, bump) if attempts > 2 else bump(ctx))
            except Exception:  # noqa: BLE001 - what is tested
                await ctx.db.insert(Note(text="swallowed"))

        for number, found in ((2, 11), (4, 31)):
            await backend.run_mutation(write, story)
            assert attempts == number
            assert (await backend.run_query(read, lambda ctx: ctx.db.get(Note, note_id))).number == found
        assert await backend.run_query(count) == 1


# ----- actions


async def test_an_action_in_a_process_takes_gives_and_raises_what_json_can_say(sqlite_url: str) -> None:
    """Nothing is unpickled: an error that is not known here arrives as text, with the traceback from there."""
    async with TestApp(process_actions.app, sqlite_url, processes=1) as backend:
        at = datetime(2030, 1, 1, tzinfo=UTC)
        numbers = [Decimal("1.5"), Decimal("2.50")]
        sums = await backend.run_action(process_actions.add, numbers, at)
        assert sums == process_actions.Sums(total=Decimal("4.0"), at=at, seal=b"\xff")
        assert type(sums) is process_actions.Sums
        lives = await backend.run_action(process_actions.process_id)
        assert lives != os.getpid()
        with pytest.raises(ArgumentsInvalid):
            await backend.run_action(process_actions.add, numbers, datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(ResultInvalid):
            await backend.run_action(process_actions.wrong_result)
        for what in ("db", "scheduler", "run_query", "cancelled"):
            with pytest.raises(ContextError, match=f"ctx.{what} does not exist"):
                await backend.run_action(process_actions.reach_out, what)
        for how in ("application", "own"):
            with pytest.raises(ApplicationError) as application:
                await backend.run_action(process_actions.fail, how)
            assert application.value.data == {"seats": 0}
        with pytest.raises(NonRetryableError, match=r"no use Do not\.") as final:
            await backend.run_action(process_actions.fail, "final")
        assert final.value.facts == {"tries": 3}
        with pytest.raises(ValueError, match="wrong"):
            await backend.run_action(process_actions.fail, "value")
        for how, says in (
            ("two", r"^NeedsTwo: one and <object"),
            ("pydantic", r"^ValidationError: 2 validation errors"),
            ("key", r"^KeyError: 'what'"),
            ("evil", r"^Evil: "),
            ("stop", r"^SystemExit: 3"),
        ):
            with pytest.raises(RuntimeError, match=says) as caught:
                await backend.run_action(process_actions.fail, how)
            assert "process_actions.py" in caught.value.__notes__[0]
        assert await backend.run_action(process_actions.process_id) == lives, "the process goes on"
        with pytest.raises(WorkerLost):
            await backend.run_action(process_actions.fail, "die")
        assert await backend.run_action(process_actions.process_id) not in {lives, os.getpid()}, "another one"
