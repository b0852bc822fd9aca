"""A column that `penstock dev` renames, under indexes and with changes that nobody has read yet."""

from __future__ import annotations

import types
from datetime import timedelta
from typing import Any

import click
import pytest

from penstock import (
    App,
    Config,
    Index,
    MutationCtx,
    MutationTaskCtx,
    QueryCtx,
    SearchIndex,
    Table,
    VectorIndex,
)
from penstock.cli.dev import rename_columns
from penstock.testing import TestApp
from penstock.testing.app import MessagesFailed

pytestmark = pytest.mark.both_stores


class Release:
    """A program about people, whose field is called `phone`, and `mobile` in the next release."""

    def __init__(self, column: str, *, outbox: bool = False) -> None:
        space = {
            "__module__": __name__,
            "__annotations__": {column: str, "note": str, "vector": list[float]},
            "by_number": Index(column),
            "words": SearchIndex("note", filters=(column,)),
            "near": VectorIndex("vector", dimensions=2, filters=(column,)),
        }
        row: Any = types.new_class("Person", (Table,), {}, lambda made: made.update(space))
        self.app, self.seen = App(name="people", tables=[row]), list[str]()

        async def handle(ctx: MutationTaskCtx[Any]) -> None:
            found = await ctx.get_document()
            self.seen.append(f"{found.note} {getattr(found, column)}")

        handle.__annotations__["ctx"] = MutationTaskCtx[row]
        self.app.reactive_task(row, name="people:task")(handle)

        async def deliver(ctx: MutationCtx, person: Any) -> None:
            self.seen.append(f"delivered {person.note} {getattr(person, column)}")

        if outbox:
            deliver.__annotations__["person"] = row
            self.app.outbox(row, name="box")(deliver)

        @self.app.mutation(name="people:put")
        async def put(ctx: MutationCtx, note: str) -> None:
            await ctx.db.insert(row(**{column: "1", "note": note, "vector": [1.0, 2.0]}))

        @self.app.query(name="people:find")
        async def find(ctx: QueryCtx) -> list[int]:
            where: dict[str, Any] = {column: "1"}
            return [
                len(await ctx.db.query(row).with_index(row.by_number, **where).collect()),
                len(await ctx.db.query(row).with_search_index(row.words, "hello", **where).collect()),
                len(await ctx.vector_search(row.near, [1.0, 2.0], **where)),
            ]

        self.put, self.find = put, find


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions of `penstock dev`, which are answered with yes."""
    texts = list[str]()

    def confirm(text: str, **_: Any) -> bool:
        texts.append(text)
        return True

    monkeypatch.setattr(click, "confirm", confirm)
    return texts


async def test_indexes_and_tasks_go_on_with_changes_that_nobody_has_read(database_url: str, asked: list[str]) -> None:
    old, new = Release("phone"), Release("mobile")
    async with TestApp(old.app, database_url) as test:
        await test.run_mutation(old.put, "hello read")
        await test.run_until_idle()
        await test.indexer.tick()
        await test.run_mutation(old.put, "hello unread")
        await test.scheduler.run_after(timedelta(0), old.put, "hello job")
    await rename_columns(new.app, Config(database=database_url))
    assert len(asked) == 1
    async with TestApp(new.app, database_url) as test:
        assert await test.run_query(new.find) == [2, 2, 2]
        await test.run_until_idle()
        for _ in range(4):
            test.clock.advance(timedelta(seconds=2))
            await test.indexer.tick()
        assert await test.run_query(new.find) == [3, 3, 3]
        assert {"hello unread 1", "hello job 1"} <= {*new.seen}


async def test_an_outbox_that_is_behind_is_named(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = Release("phone", outbox=True), Release("mobile", outbox=True)
    async with TestApp(old.app, database_url) as test:
        await test.run_mutation(old.put, "hello")
        await test.run_until_idle()
        await test.run_mutation(old.put, "hello unread")
    await rename_columns(new.app, Config(database=database_url))
    assert "Outbox box still has changes with phone." in capsys.readouterr().err
    async with TestApp(new.app, database_url) as test:
        with pytest.raises(MessagesFailed, match=r"it has no mobile.* or skip the message"):
            await test.run_until_idle()
