"""Access: a function that says who may call it has the type of its handler."""

from typing import assert_type

from penstock import ActionCtx, App, Id, QueryCtx, Table, owner_of, public, signed_in, sync

app = App(require_access=True)


class Team(Table):
    owner: str


async def is_open(ctx: QueryCtx, team: Id[Team]) -> bool:
    return await ctx.db.get(Team, team) is not None


def is_closed(ctx: sync.QueryCtx) -> bool:
    return False


@app.query(access=signed_in & (is_open | owner_of(Team, "team")))
async def name(ctx: QueryCtx, team: Id[Team]) -> str:
    return "x"


@app.mutation(access=is_closed, rate_limit="names")
def rename(ctx: sync.MutationCtx, team: Id[Team]) -> int:
    return 1


@app.action(access=public, runtime="process")
def compute(ctx: sync.ActionCtx, number: int) -> int:
    return number


@app.query(access=True)  # refused: call-overload, untyped-decorator
async def wrong(ctx: QueryCtx) -> None:
    pass


@app.query(rate_limit="names")  # refused: call-overload, untyped-decorator
async def limited(ctx: QueryCtx) -> None:
    pass


async def calls(ctx: ActionCtx, team: Id[Team]) -> None:
    assert_type(await ctx.run_query(name, team), str)
    assert_type(await ctx.run_mutation(rename, team=team), int)
    assert_type(await ctx.run_action(compute, 3), int)
    await ctx.run_action(compute, "3")  # refused: arg-type
