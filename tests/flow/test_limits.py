"""The limits of one transaction: each has a name, says what is allowed, and stops all of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from stage.stories import tell_in

from penstock import ActionCtx, App, Index, LimitExceeded, MutationCtx, Table
from penstock.jobs.job import job_id
from penstock.testing import TestApp


class Note(Table):
    text: str
    number: int = 0

    by_number = Index("number")


NOW = timedelta(0)
app = OPENED = App()
write, read, act = tell_in(app)


@app.mutation
async def add(ctx: MutationCtx, text: str) -> str:
    """Insert a note."""
    await ctx.db.insert(Note(text=text))
    return text


async def count(backend: TestApp) -> int:
    found: int = await backend.run_query(read, lambda ctx: ctx.db.query(Note).count())
    return found


async def fill(ctx: MutationCtx) -> None:
    await ctx.db.insert_many([Note(text="x" * 100, number=number) for number in range(10)])


def repeated(times: int, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def story(ctx: Any) -> None:
        for _ in range(times):
            await call(ctx)

    return story


async def cancel_some_job(ctx: MutationCtx) -> None:
    await ctx.scheduler.cancel(job_id(UUID(int=1)))


SAID = {
    "max_rows_read": "read more than {} rows",
    "max_bytes_read": "read more than {} bytes",
    "max_ranges_read": "read more than {} ranges",
    "max_rows_written": "written more than {} rows",
    "max_bytes_written": "written more than {} bytes",
    "max_row_bytes": "a row of [0-9]+ bytes exceeds the limit of {}",
    "max_jobs_scheduled": "(scheduled|asked to cancel) more than {} jobs",
    "max_bytes_scheduled": "scheduled more than {} bytes of arguments",
    "max_job_argument_bytes": "a job may have {}",
}
READS: dict[tuple[str, int], list[Callable[[Any], Any]]] = {
    ("max_rows_read", 9): [
        lambda ctx: ctx.db.query(Note).take(10),
        lambda ctx: ctx.sql("select * from note"),
        lambda ctx: ctx.db.query(Note).filter(lambda _: False).count(),
        lambda ctx: ctx.db.query(Note).with_index(Note.by_number).group_by("number").count(),
    ],
    ("max_rows_read", 19): [lambda ctx: ctx.run_query(read, repeated(2, lambda inner: inner.db.query(Note).collect()))],
    ("max_bytes_read", 1000): [
        lambda ctx: ctx.db.query(Note).collect(),
        lambda ctx: ctx.sql("select * from note"),
    ],
    ("max_ranges_read", 2): [
        repeated(3, lambda ctx: ctx.db.query(Note).with_index(Note.by_number, number=1).first()),
        repeated(3, lambda ctx: ctx.db.query(Note).count()),
    ],
}
WRITES: dict[tuple[str, int], list[Callable[[Any], Any]]] = {
    ("max_rows_written", 19): [repeated(2, fill), repeated(2, lambda ctx: ctx.run_mutation(write, fill))],
    ("max_bytes_written", 1000): [fill],
    ("max_row_bytes", 300): [lambda ctx: ctx.db.insert(Note(text="x" * 300))],
    ("max_jobs_scheduled", 3): [
        repeated(4, lambda ctx: ctx.scheduler.run_after(NOW, add, text="x")),
        repeated(4, cancel_some_job),
    ],
    ("max_bytes_scheduled", 250): [repeated(3, lambda ctx: ctx.scheduler.run_after(NOW, add, text="x" * 80))],
    ("max_job_argument_bytes", 100): [lambda ctx: ctx.scheduler.run_after(NOW, add, text="x" * 100)],
}


async def refused(backend: TestApp, story: Callable[[Any], Any], setting: str, limit: int) -> None:
    """A mutation is refused with a limit, also if its function swallows what it is told of that."""

    async def both(ctx: MutationCtx) -> None:
        await ctx.db.insert(Note(text=""))
        await story(ctx)

    async def swallow(ctx: MutationCtx) -> None:
        with contextlib.suppress(LimitExceeded):
            await story(ctx)

    message = SAID[setting].format(limit)
    with pytest.raises(LimitExceeded, match=message) as caught:
        await backend.run_mutation(write, both)
    assert caught.value.facts["limit"] == limit
    if "read" in setting or "written" in setting:  # others are refused one by one
        with pytest.raises(LimitExceeded, match=message):
            await backend.run_mutation(write, swallow)


async def test_more_than_a_limit_fails_and_stores_nothing(database_url: str) -> None:
    for (setting, limit), stories in WRITES.items():
        async with TestApp(app, database_url, **{setting: limit}) as backend:  # type: ignore[arg-type]
            for story in stories:
                await refused(backend, story, setting, limit)
            assert (await count(backend), await backend.jobs()) == (0, []), setting
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, fill)
    for (setting, limit), stories in READS.items():
        async with TestApp(app, database_url, **{setting: limit}) as backend:  # type: ignore[arg-type]
            for story in stories:
                with pytest.raises(LimitExceeded, match=SAID[setting].format(limit)):
                    await backend.run_query(read, story)
                await refused(backend, story, setting, limit)
    async with TestApp(app, database_url) as backend:
        assert await count(backend) == 10


async def test_just_as_much_as_the_limit_is_fine_and_an_action_has_many_transactions(database_url: str) -> None:
    settings: dict[str, Any] = {"max_rows_read": 10, "max_rows_written": 10, "max_jobs_scheduled": 3}
    async with TestApp(app, database_url, **settings) as backend:

        async def story(ctx: ActionCtx) -> None:
            for _ in range(3):
                await ctx.run_mutation(write, fill)
                await ctx.run_query(read, lambda inner: inner.db.query(Note).take(10))

        await backend.run_action(act, story)
        assert await count(backend) == 30
        await backend.run_mutation(write, repeated(3, lambda ctx: ctx.scheduler.run_after(NOW, add, text="x")))
        assert len(await backend.jobs()) == 3


async def test_a_row_that_was_refused_is_not_there_if_the_function_goes_on(database_url: str) -> None:
    async with TestApp(app, database_url, max_row_bytes=1000) as backend:
        note = await backend.run_mutation(write, lambda ctx: ctx.db.insert(Note(text="small")))

        async def story(ctx: MutationCtx) -> None:
            for call in (
                ctx.db.insert(Note(text="x" * 1000)),
                ctx.db.patch(Note, note, text="x" * 1000),
                ctx.db.replace(Note, note, Note(text="x" * 1000)),
            ):
                with pytest.raises(LimitExceeded, match=r"a row of 1\d\d\d bytes exceeds the limit of 1000"):
                    await call
            assert (await ctx.db.patch(Note, note, number=1)).text == "small"

        await backend.run_mutation(write, story)
        rows = await backend.run_query(read, lambda ctx: ctx.db.query(Note).collect())
        assert [(row.text, row.number) for row in rows] == [("small", 1)]


async def test_what_json_makes_of_arguments_counts_and_what_was_refused_is_not_there(database_url: str) -> None:
    async with TestApp(app, database_url, max_job_argument_bytes=100, max_argument_bytes=100) as backend:

        async def story(ctx: Any) -> None:
            for text in ("x" * 91, "\x01" * 20, '"' * 60, "\N{GRINNING FACE}" * 25):
                with pytest.raises(LimitExceeded):
                    await ctx.scheduler.run_after(NOW, add, text=text)
            await ctx.scheduler.run_after(NOW, add, text="k" * 88)

        await backend.run_mutation(write, story)
        await backend.run_action(act, story)
        assert [job.args for job in await backend.jobs()] == [{"text": "k" * 88}] * 2
        await backend.dispatch.call(add.name, None, '{"text": "' + "x" * 88 + '"}')
        for text in ("x" * 89, "\N{GRINNING FACE}" * 30):
            with pytest.raises(LimitExceeded, match="100 are allowed"):
                await backend.dispatch.call(add.name, None, ('{"text": "' + text + '"}').encode())
        assert await count(backend) == 1
