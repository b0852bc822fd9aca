"""What jobs that share a transaction write of a table with an outbox: each change is a message, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from penstock import ActionCtx, App, Id, MutationCtx, Table
from penstock.outbox.message import Message
from penstock.testing import TestApp

app = App()

heard: list[Any] = []


class Person(Table, name="person"):
    name: str
    calls: int = 0
    note: str = ""


@app.outbox(Person, on=("insert", "update", "delete"))
async def people(ctx: ActionCtx, message: Message[Person]) -> None:
    row = message.row or message.previous
    assert row is not None
    heard.append((message.kind, row.name, row.calls, row.note))


@app.internal_mutation
async def add(ctx: MutationCtx, names: list[str]) -> list[Id[Person]]:
    return await ctx.db.insert_many(Person(name=name) for name in names)


@app.internal_mutation
async def call(ctx: MutationCtx, person: Id[Person]) -> None:
    row = await ctx.db.get(Person, person)
    assert row is not None
    await ctx.db.patch(Person, person, calls=row.calls + 1)


@app.internal_mutation
async def note(ctx: MutationCtx, person: Id[Person], text: str) -> None:
    await ctx.db.patch(Person, person, note=text)
    await ctx.db.insert(Person(name=text))


@app.internal_mutation
async def drop(ctx: MutationCtx, person: Id[Person]) -> None:
    await ctx.db.delete(Person, person)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    heard.clear()


async def test_each_change_is_a_message_and_in_the_order_of_statements(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        a, b = await test.run_mutation(add, ["a", "b"])
        asked: list[tuple[Any, ...]] = [
            (call, a), (call, a), (note, b, "x"), (call, b), (call, a), (note, a, "y"), (drop, b), (call, a),
        ]  # fmt: skip
        for function, *args in asked:
            await test.scheduler.run_after(timedelta(0), function, *args)
        await test.run_until_idle()
        await test.relay.drain()
    assert heard == [
        ("insert", "a", 0, ""),
        ("insert", "b", 0, ""),
        ("update", "a", 1, ""),
        ("update", "a", 2, ""),
        ("update", "b", 0, "x"),
        ("insert", "x", 0, ""),
        ("update", "b", 1, "x"),
        ("update", "a", 3, ""),
        ("update", "a", 3, "y"),
        ("insert", "y", 0, ""),
        ("delete", "b", 1, "x"),
        ("update", "a", 4, "y"),
    ]
