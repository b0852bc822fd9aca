"""Functions: what they take and give, that they run whole or not at all, and again from scratch if they conflict."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import pytest
from flow import process_actions
from pydantic import BaseModel, Field
from stage.stories import tell_in

from penstock import (
    ActionCtx,
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
    PenstockError,
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
    """Take arguments of three sorts."""
    ran.append((text, number, again))
    return await ctx.db.insert(Note(text=text, number=number))


@app.mutation
async def stamp(
    ctx: MutationCtx,
    at: datetime | None = None,
    small: Annotated[int, Field(ge=0)] = 0,
    whole: int = 0,
    price: Decimal = Decimal(0),
    wait: timedelta = timedelta(0),
    data: bytes = b"",
    notes: list[Id[Note]] | None = None,
    stamp: Stamp | None = None,
    config: int = 0,
) -> Any:
    """Take arguments of many types."""
    ran.append("stamp")
    return [at, small, whole, price, wait, data, notes, stamp, config]


@app.query
async def count(ctx: QueryCtx, text: str | None = None) -> int:
    """Count notes."""
    notes = ctx.db.query(Note)
    return await (notes if text is None else notes.with_index(Note.by_text, text=text)).count()


@app.mutation
async def broken_promise(ctx: MutationCtx, result: Any) -> int:
    """Write, and return what was not promised."""
    await ctx.db.insert(Note(text="x"))
    await ctx.scheduler.run_after(timedelta(0), note, text="later")
    result_of_anything: int = result
    return result_of_anything


@app.mutation
async def nothing(ctx: MutationCtx, result: Any) -> None:
    """Write, and return something although nothing was promised."""
    await ctx.db.insert(Note(text="x"))
    return result  # type: ignore[no-any-return]  # what is tested


@app.internal_mutation
async def collect_into(ctx: MutationCtx, given: Any, texts: list[str], stamp: Stamp) -> list[int]:
    """Change its own arguments."""
    given.append(1)
    texts.append("x")
    stamp.texts.append("x")
    return [len(given), len(texts), len(stamp.texts)]


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


# ----- what goes in


async def test_arguments_are_given_by_place_or_by_name_and_defaults_fill_the_rest(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(note, "a")
        await backend.run_mutation(note, "b", 1)
        await backend.run_mutation(note, "c", 2, again=True)
        await backend.run_mutation(note, number=3, text="d")
        await backend.dispatch.call(note.name, None, '{"text": "e", "again": true}')
        assert ran == [("a", 7, False), ("b", 1, False), ("c", 2, True), ("d", 3, False), ("e", 7, True)]


WRONG: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    (("a", 1, True, 5), {}),
    (("a",), {"text": "b"}),
    (("a",), {"unknown": 1}),
    (("a",), {"": 1}),
    ((5,), {}),
    ((b"a",), {}),
    ((None,), {}),
    (("a", "1"), {}),
    (("a", 1.0), {}),
    (("a", True), {}),
    (("a", INT64), {}),
    (("a", 10**5000), {}),
    (("a",), {"again": 1}),
    (("a",), {"again": "true"}),
]


@pytest.mark.parametrize(("args", "kwargs"), WRONG)
async def test_wrong_arguments_are_refused_before_anything_happens(
    sqlite_url: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    async with TestApp(app, sqlite_url) as backend:
        with pytest.raises(ArgumentsInvalid):
            await backend.run_mutation(note, *args, **kwargs)
        with pytest.raises(ArgumentsInvalid):
            await backend.scheduler.run_after(timedelta(0), note, *args, **kwargs)
        with pytest.raises(ArgumentsInvalid):
            await backend.run_mutation(write, lambda ctx: ctx.run_mutation(note, *args, **kwargs))
        assert ran == []
        assert await backend.run_query(count) == 0
        assert await backend.jobs() == []


REFUSED_VALUES: list[dict[str, Any]] = [
    {"at": datetime(2030, 1, 1)},  # noqa: DTZ001 - what is tested
    {"at": "2030-01-01T00:00:00Z"},
    {"small": -1},
    {"small": INT64},
    {"whole": -INT64 - 1},
    {"config": INT64},
    {"price": "1"},
    {"price": Decimal("NaN")},
    {"wait": 5},
    {"data": "x"},
    {"notes": ["note_x"]},
    {"notes": ["other_01jd3k4v5w6x7y8z9a0b1c2d3e"]},
    {"notes": [None]},
    {"notes": {"a": 1}},
    {"stamp": {"at": "x"}},
    {"stamp": 5},
]
REFUSED_TEXTS = [
    "", "nope", "[]", "null", '"x"', "5", "{", '{"at": 1577836800}', '{"at": "2030-01-01T00:00:00"}', '{"at": "soon"}',
    '{"small": 9223372036854775808}', '{"whole": 1.5}', '{"whole": 1e300}', '{"whole": "1"}', '{"whole": true}',
    '{"whole": NaN}', '{"price": NaN}', '{"notes": ["note_x"]}', '{"notes": "note_01jd3k4v5w6x7y8z9a0b1c2d3e"}',
    '{"stamp": {}}', '{"stamp": {"at": null}}', '{"unknown": 1}', '{"data": "\\ud800"}', '{"wait": {}}',
    '{"config": 1e400}', '{"notes": ' + "[" * 5000 + "]" * 5000 + "}", "\ufeff{}", '{"whole": 1} x',
]  # fmt: skip


async def test_values_of_other_types_are_refused_from_python_and_from_json(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url) as backend:
        for given in REFUSED_VALUES:
            with pytest.raises(ArgumentsInvalid):
                await backend.run_mutation(stamp, **given)
        for text in REFUSED_TEXTS:
            with pytest.raises(ArgumentsInvalid):
                await backend.dispatch.call(stamp.name, None, text)
            with pytest.raises(ArgumentsInvalid):
                await backend.dispatch.call(stamp.name, None, text.encode())
        with pytest.raises(ArgumentsInvalid):
            await backend.dispatch.call(stamp.name, None, b'{"data": "\xff"}')
        assert ran == []


async def test_an_error_names_each_wrong_argument_and_never_its_value(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url) as backend:
        with pytest.raises(ArgumentsInvalid) as caught:
            await backend.dispatch.call(note.name, None, '{"text": 5, "number": "secret", "unknown": "secret"}')
        assert {detail["loc"] for detail in caught.value.facts["errors"]} == {("text",), ("number",), ("unknown",)}
        assert caught.value.facts["function"] == note.name
        assert "secret" not in str(caught.value)
        assert "secret" not in repr(caught.value.facts)


async def test_arguments_mean_the_same_from_python_and_from_json(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url) as backend:
        note_id = await backend.run_mutation(note, "a")
        at = datetime(2030, 1, 1, 12, tzinfo=UTC)
        given: dict[str, Any] = {
            "at": at,
            "small": 5,
            "whole": -INT64,
            "price": Decimal("1.50"),
            "wait": timedelta(hours=-1),
            "data": b"\0\xff",
            "notes": [note_id],
            "stamp": Stamp(at=at, texts=["x"]),
            "config": 1,
        }
        text = (
            '{"at": "2030-01-01T13:00:00+01:00", "small": 5, "whole": -9223372036854775808, "price": "1.50", '
            '"wait": "-PT1H", "data": "AP8=", "notes": ["' + note_id + '"], "config": 1, '
            '"stamp": {"at": "2030-01-01T12:00:00Z", "texts": ["x"]}}'
        )
        assert await backend.run_mutation(stamp, **given) == await backend.dispatch.call(stamp.name, None, text)


# ----- what comes out


@pytest.mark.parametrize("result", ["5", 5.0, None, True, b"5", [5], Decimal(5)])
async def test_a_broken_promise_undoes_everything(database_url: str, result: Any) -> None:
    async with TestApp(app, database_url) as backend:
        with pytest.raises(ResultInvalid, match="broken_promise returned") as refused:
            await backend.run_mutation(broken_promise, result)
        assert ("add | None to the annotation" in str(refused.value)) is (result is None)
        if result is not None:
            with pytest.raises(ResultInvalid, match="annotated to return None"):
                await backend.run_mutation(nothing, result)
        assert await backend.run_query(count) == 0
        assert await backend.jobs() == []
        assert await backend.run_mutation(broken_promise, 5) == 5


async def test_the_result_of_a_nested_call_is_checked_and_can_be_caught(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            with pytest.raises(ResultInvalid):
                await ctx.run_mutation(broken_promise, "x")
            await ctx.db.insert(Note(text="kept"))

        await backend.run_mutation(write, story)
        assert await backend.run_query(count) == 1
        assert await backend.jobs() == []


# ----- whole, or not at all


class Boom(Exception):
    """A user's own error."""


async def test_an_error_undoes_everything_and_reaches_the_caller_as_it_is(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for error in (
            Boom("x"),
            ApplicationError({"seats": 0}),
            ValueError("y"),
            asyncio.CancelledError(),
            UniqueViolation("z"),
        ):

            async def story(ctx: MutationCtx, error: BaseException = error) -> None:
                await ctx.db.insert(Note(text="x"))
                await ctx.scheduler.run_after(timedelta(0), note, text="later")
                raise error

            with pytest.raises(type(error)) as caught:
                await backend.run_mutation(write, story)
            assert caught.value is error
        assert await backend.run_query(count) == 0
        assert await backend.jobs() == []


async def test_a_helper_is_part_of_its_callers_transaction(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            note_id = await note(ctx, "helped", number=3)
            assert await count(ctx) == 1
            assert (await ctx.db.get(Note, note_id)).number == 3  # type: ignore[union-attr]  # it was inserted
            raise Boom

        with pytest.raises(Boom):
            await backend.run_mutation(write, story)
        assert await backend.run_query(count) == 0


async def test_a_function_is_run_as_what_it_is(database_url: str) -> None:
    async def helper(ctx: Any) -> None:
        """Not a function of an app."""

    async with TestApp(app, database_url) as backend:
        run: Any = backend
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: run.run_query(note, "x"),
            lambda: run.run_action(note, "x"),
            lambda: run.run_mutation(count),
            lambda: run.run_mutation(act, None),
            lambda: run.run_query(helper),
            lambda: run.run_mutation(None),
            lambda: run.run_mutation(write, lambda ctx: ctx.run_query(note, "x")),
            lambda: run.run_mutation(write, lambda ctx: ctx.run_mutation(count)),
            lambda: run.run_mutation(write, lambda ctx: ctx.run_mutation(helper)),
            lambda: run.run_mutation(write, lambda ctx: ctx.scheduler.run_after(timedelta(0), count)),
            lambda: run.run_mutation(write, lambda ctx: ctx.scheduler.run_after(timedelta(0), helper)),
            lambda: run.run_action(act, lambda ctx: ctx.run_query(note, "x")),
        ]
        for call in calls:
            with pytest.raises(ContextError):
                await call()
        assert await backend.run_query(count) == 0


async def test_a_call_from_outside_finds_public_functions_of_its_kind_only(sqlite_url: str) -> None:
    async with TestApp(app, sqlite_url) as backend:
        for path in (
            write.name,
            "nope",
            "",
            "a:b:c",
            "note",
            f"{note.name} ",
            note.name.upper(),
            "../" + note.name,
            "\0",
        ):
            with pytest.raises(FunctionNotFound, match="Could not find public function"):
                await backend.dispatch.call(path, None, "{}")
        with pytest.raises(FunctionNotFound, match="is a mutation"):
            await backend.dispatch.call(note.name, count.kind, "{}")
        assert await backend.dispatch.call(count.name, count.kind, "{}") == 0
        with pytest.raises(ArgumentsInvalid, match="story"):
            await backend.dispatch.call(write.name, None, "{}", internal=True)


# ----- again, from scratch


async def test_a_retry_repeats_time_chance_and_arguments(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        seen: list[Any] = []

        async def story(ctx: MutationCtx) -> Any:
            backend.clock.advance(timedelta(seconds=5))
            first = (ctx.now(), ctx.random.random(), ctx.random.randint(0, 10**9))
            inner = await ctx.run_mutation(write, moment)
            seen.append((first, inner, ctx.random.random()))
            await ctx.db.insert(Note(text=str(len(seen))))

        async def moment(ctx: MutationCtx) -> Any:
            return ctx.now(), ctx.random.random()

        with raising("commit.before", Conflict("staged"), times=3):
            await backend.run_mutation(write, story)
        assert len(seen) == 4
        assert seen == [seen[0]] * 4
        assert await backend.run_query(count, "4") == 1, "the attempts before left nothing"
        assert await backend.run_query(count) == 1
        await backend.run_mutation(write, story)
        assert seen[4] != seen[0], "another execution has its own"


async def test_an_attempt_does_not_see_what_the_one_before_did_to_its_arguments(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        given: list[int] = []
        texts: list[str] = []
        kept = Stamp(at=datetime(2030, 1, 1, tzinfo=UTC))
        with raising("commit.before", Conflict("staged"), times=2):
            assert await backend.run_mutation(collect_into, given, texts, kept) == [1, 1, 1]
        assert (given, texts, kept.texts) == ([], [], []), "what the caller holds is left alone"


async def test_a_conflict_is_tried_as_often_as_the_settings_say(database_url: str) -> None:
    async with TestApp(app, database_url, conflict_attempts=3) as backend:
        attempts = 0

        async def story(ctx: MutationCtx) -> None:
            nonlocal attempts
            attempts += 1
            await ctx.db.insert(Note(text="x"))
            await ctx.scheduler.run_after(timedelta(0), note, text="later")

        with (
            raising("commit.before", Conflict("staged"), times=99),
            pytest.raises(Conflict, match="each of 3 attempts"),
        ):
            await backend.run_mutation(write, story)
        assert attempts == 3
        assert await backend.run_query(count) == 0
        with raising("commit.before", Conflict("staged"), times=2):
            await backend.run_mutation(write, story)
        assert attempts == 6
        assert await backend.run_query(count) == 1
        assert len(await backend.jobs()) == 1


async def test_other_errors_are_not_tried_again(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for error in (Boom(), UniqueViolation("x"), LimitExceeded("x")):
            with raising("commit.before", error, times=1), pytest.raises(type(error)):
                await backend.run_mutation(note, "x")
            assert len(ran) == 1
            ran.clear()
        assert await backend.run_query(count) == 0


async def test_a_function_cannot_swallow_a_conflict(postgres_url: str) -> None:
    async with TestApp(app, postgres_url) as backend:
        note_id = await backend.run_mutation(note, "a", 0)
        attempts = 0

        async def story(ctx: MutationCtx) -> None:
            nonlocal attempts
            attempts += 1
            row = await ctx.db.get(Note, note_id)
            assert row is not None
            if attempts == 1:
                await backend.run_mutation(write, lambda other: other.db.patch(Note, note_id, number=10))
            try:
                await ctx.db.patch(Note, note_id, number=row.number + 1)
            except Exception:  # noqa: BLE001 - what is tested
                await ctx.db.insert(Note(text="swallowed"))

        await backend.run_mutation(write, story)
        assert attempts == 2
        row = await backend.run_query(read, lambda ctx: ctx.db.get(Note, note_id))
        assert row.number == 11
        assert await backend.run_query(count) == 1


async def test_a_sub_mutation_cannot_hide_a_conflict_either(postgres_url: str) -> None:
    async with TestApp(app, postgres_url) as backend:
        note_id = await backend.run_mutation(note, "a", 0)
        attempts = 0

        async def bump(ctx: MutationCtx) -> None:
            await ctx.db.patch(Note, note_id, number=1)

        async def story(ctx: MutationCtx) -> None:
            nonlocal attempts
            attempts += 1
            await ctx.db.query(Note).collect()
            if attempts == 1:
                await backend.run_mutation(write, lambda other: other.db.patch(Note, note_id, number=10))
            try:
                await ctx.run_mutation(write, bump)
            except PenstockError:
                await ctx.db.insert(Note(text="hidden"))

        await backend.run_mutation(write, story)
        assert attempts == 2
        assert await backend.run_query(count) == 1


# ----- actions


async def test_an_action_has_no_transaction_of_its_own(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def story(ctx: ActionCtx) -> None:
            await ctx.run_mutation(note, "kept")
            job = await ctx.scheduler.run_after(timedelta(0), note, text="later")
            status = await ctx.scheduler.get(job)
            assert status is not None
            assert status.args == {"text": "later"}
            assert await ctx.run_query(count) == 1
            assert await ctx.run_action(act, lambda inner: inner.run_query(count)) == 1
            assert not hasattr(ctx, "db")
            raise Boom

        with pytest.raises(Boom):
            await backend.run_action(act, story)
        assert await backend.run_query(count) == 1, "what it did before it failed stays"
        assert [job.function for job in await backend.jobs()] == [note.name]
        await backend.run_until_idle()
        assert await backend.run_query(count, "later") == 1


async def test_an_action_in_a_process_takes_and_gives_what_json_can_say(sqlite_url: str) -> None:
    async with TestApp(process_actions.app, sqlite_url, processes=1) as backend:
        at = datetime(2030, 1, 1, tzinfo=UTC)
        numbers = [Decimal("1.5"), Decimal("2.50")]
        sums = await backend.run_action(process_actions.add, numbers, at)
        assert sums == process_actions.Sums(total=Decimal("4.0"), at=at, seal=b"\xff")
        assert type(sums) is process_actions.Sums
        assert await backend.run_action(process_actions.process_id) != os.getpid()
        with pytest.raises(ArgumentsInvalid):
            await backend.run_action(process_actions.add, numbers, datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(ResultInvalid):
            await backend.run_action(process_actions.wrong_result)
        for what in ("db", "scheduler", "run_query", "cancelled"):
            with pytest.raises(ContextError, match=f"ctx.{what} does not exist"):
                await backend.run_action(process_actions.reach_out, what)


async def test_what_fails_in_a_process_fails_here_too(sqlite_url: str) -> None:
    async with TestApp(process_actions.app, sqlite_url, processes=1) as backend:
        with pytest.raises(ApplicationError) as application:
            await backend.run_action(process_actions.fail, "application")
        assert application.value.data == {"seats": 0}
        with pytest.raises(NonRetryableError, match=r"no use Do not\.") as final:
            await backend.run_action(process_actions.fail, "final")
        assert final.value.facts == {"tries": 3}
        with pytest.raises(ValueError, match="wrong"):
            await backend.run_action(process_actions.fail, "value")
        with pytest.raises(WorkerLost):
            await backend.run_action(process_actions.fail, "die")
        assert await backend.run_action(process_actions.process_id) != os.getpid(), "another process takes its place"


async def test_errors_cross_from_a_process_as_json_and_run_no_code_here(sqlite_url: str) -> None:
    """Nothing is unpickled: what is not known here arrives as text, with the traceback from there."""
    async with TestApp(process_actions.app, sqlite_url, processes=1) as backend:
        lives = await backend.run_action(process_actions.process_id)
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
        with pytest.raises(ApplicationError) as own:
            await backend.run_action(process_actions.fail, "own")
        assert own.value.data == {"seats": 0}
        assert await backend.run_action(process_actions.process_id) == lives, "the process goes on"
