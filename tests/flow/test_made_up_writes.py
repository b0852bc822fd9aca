"""Whatever is written to whatever table, it has the rows that a dict in Python has; see `stage.livetables`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from flow.test_made_up_queries import keys_of, made_app, row_of, table_of
from stage.examples import examples
from stage.livetables import Made

from penstock import MutationCtx, QueryCtx, RowNotFound, UniqueViolation, ValueInvalid
from penstock.clock import Random, random_of
from penstock.schema.table import definition_of
from penstock.testing import TestApp

STEPS = 150
Row = dict[str, Any]
Rows = dict[Any, Row]


class Model:
    """A table, its rows as they should be, and the verbs that change both."""

    def __init__(self, dice: Random, made: Made) -> None:
        self.dice, self.made, self.rows = dice, made, Rows()
        self.gone: list[Any] = []
        self.verbs: list[Callable[[MutationCtx], Any]] = [self.insert, self.patch, self.replace, self.delete]
        keys = keys_of(made)
        self.unique = {tuple(index.columns): index.name for index in made.table.__indexes__ if index.unique}
        self.unique |= {tuple(keys): "the key"} if keys else {}

    def fields(self, row: Any) -> Row:
        return {name: getattr(row, name) for name in self.made.sorts}

    def some_key(self) -> Any:
        """The key of a row, or of one that is gone."""
        return self.dice.choice([*self.rows, *self.rows, *self.gone[-2:]] or [None])

    def taken(self, fields: Row, key: Any) -> list[Any]:
        """What is unique and another row has it."""
        found = list[Any]()
        for columns, name in self.unique.items():
            values = [fields[column] for column in columns]
            others = [[row[column] for column in columns] for other, row in self.rows.items() if other != key]
            if None not in values and values in others:
                found.append(name)
        return found

    async def refused(self, call: Awaitable[Any], taken: list[Any]) -> None:
        with pytest.raises(UniqueViolation) as caught:
            await call
        assert caught.value.facts["table"] == definition_of(self.made.table).name
        several = sum(index.unique for index in self.made.table.__indexes__) > 1  # and which of them, no store says
        named = [None, *taken] if several else taken
        assert self.made.created or caught.value.facts["index"] in named

    async def insert(self, ctx: MutationCtx) -> None:
        row = row_of(self.dice, self.made)
        if taken := self.taken(self.fields(row), None):
            await self.refused(ctx.db.insert(row), taken)
            return
        key = await ctx.db.insert(row)
        assert key not in self.rows
        self.rows[key] = self.fields(row)
        if not self.made.created:
            stored: Any = await ctx.db.get(self.made.table, key)
            assert stored.creation_time == ctx.now()

    async def patch(self, ctx: MutationCtx) -> None:
        fields = self.fields(row_of(self.dice, self.made))
        names = self.dice.sample([*fields], k=self.dice.randint(1, len(fields)))
        await self.change(ctx, self.some_key(), {name: fields[name] for name in names}, replaces=False)

    async def replace(self, ctx: MutationCtx) -> None:
        key, fields = self.some_key(), self.fields(row_of(self.dice, self.made))
        if self.dice.random() < 0.8:
            fields |= {name: self.rows[key][name] for name in keys_of(self.made) if key in self.rows}
        await self.change(ctx, key, fields, replaces=True)

    async def change(self, ctx: MutationCtx, key: Any, changes: Row, *, replaces: bool) -> None:
        """Patch or replace a row."""
        table: Any = self.made.table
        if key is None:
            return
        call = ctx.db.replace(table, key, table(**changes)) if replaces else ctx.db.patch(table, key, **changes)
        before = self.rows.get(key)
        moves = any(
            name in changes and (not replaces or not before or changes[name] != before[name])
            for name in keys_of(self.made)
        )
        if before is None or moves:
            with pytest.raises((RowNotFound, ValueInvalid) if moves else RowNotFound):
                await call
        elif taken := self.taken(before | changes, key):
            await self.refused(call, taken)
        else:
            row = await call
            self.rows[key] = before | changes
            assert (row.id, self.fields(row)) == (key, self.rows[key])

    async def delete(self, ctx: MutationCtx) -> None:
        key = self.some_key()
        if key is None:
            return
        if key not in self.rows:
            with pytest.raises(RowNotFound):
                await ctx.db.delete(self.made.table, key)
            return
        await ctx.db.delete(self.made.table, key)
        self.gone.append(key)
        del self.rows[key]

    async def check(self, ctx: Any) -> None:
        found = {row.id: self.fields(row) for row in await ctx.db.query(self.made.table).collect()}
        assert found == self.rows
        for key in [*self.rows][:3]:
            assert self.fields(await ctx.db.get(self.made.table, key)) == self.rows[key]
        for key in self.gone[-3:]:
            assert (await ctx.db.get(self.made.table, key) is None) is (key not in self.rows)


@pytest.mark.both_stores
@pytest.mark.parametrize("seed", range(examples(25)))
async def test_a_table_has_the_rows_that_were_written(database_url: str, seed: int) -> None:
    dice = random_of(seed)
    models = [Model(dice, table_of(dice, f"made{number}")) for number in range(3)]
    app, (write, read, _) = await made_app(database_url, [model.made for model in models])

    async def steps(ctx: MutationCtx) -> None:
        for _ in range(STEPS):
            model = dice.choice(models)
            await dice.choice([model.insert, *model.verbs])(ctx)
            if dice.random() < 0.1:
                await model.check(ctx)

    async def look(ctx: QueryCtx) -> None:
        for model in models:
            await model.check(ctx)

    async with TestApp(app, database_url) as backend:
        for _ in range(2):
            await backend.run_mutation(write, steps)
            await backend.run_query(read, look)
