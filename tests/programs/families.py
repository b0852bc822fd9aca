"""An app over tables of another program, one of whose constraints is checked at the commit."""

from __future__ import annotations

from penstock import App, MutationCtx, QueryCtx, Table

app = App()

TABLES = (
    "create table parent (id integer primary key)",
    "create table child (number integer primary key, parent integer references parent deferrable initially deferred)",
    "insert into parent values (1)",
)


class Child(Table, source="child", key="number", managed=False):
    number: int
    parent: int


@app.mutation
async def insert_child(ctx: MutationCtx, number: int, parent: int) -> None:
    await ctx.db.insert(Child(number=number, parent=parent))


@app.query
async def children(ctx: QueryCtx) -> int:
    return await ctx.db.query(Child).count()
