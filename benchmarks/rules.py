"""Rules: a query for a user on a table with a rule, and the same query on one without, with that filter by hand.

Each user has twenty rows of the two hundred in each team. Where the index names the owner, by hand the index is the
filter; where it names the team, by hand a Python filter is.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from benchmarks.databases import StoreName, load
from benchmarks.harness import Bar, Bench, Benchmark, Side, compare
from penstock import App, Identity, Index, QueryCtx, Rules, Table
from penstock.api.backend import CallerBackend
from penstock.schema.ids import format_id

TAKE, TEAMS, USERS = 20, 50, 500
CALLERS = 4
app = App()


class Plain(Table):
    """Rows without a rule."""

    owner: str
    team: str
    text: str

    by_owner = Index("owner")
    by_team = Index("team")


class Ruled(Plain):
    """The same with one."""

    rules = Rules(read=lambda row, identity: row.owner == identity.subject)


@app.query
async def owned_ruled(ctx: QueryCtx, owner: str) -> list[Ruled]:
    """Read the caller's rows through the index of owners."""
    return await ctx.db.query(Ruled).with_index(Ruled.by_owner, owner=owner).take(TAKE)


@app.query
async def owned_by_hand(ctx: QueryCtx, owner: str) -> list[Plain]:
    """Read the same without a rule."""
    identity = await ctx.auth.require()
    assert identity.subject == owner
    return await ctx.db.query(Plain).with_index(Plain.by_owner, owner=owner).take(TAKE)


@app.query
async def team_ruled(ctx: QueryCtx, owner: str) -> list[Ruled]:
    """Read the caller's rows among those of a team."""
    return await ctx.db.query(Ruled).with_index(Ruled.by_team, team=team_of(owner)).take(TAKE)


@app.query
async def team_by_hand(ctx: QueryCtx, owner: str) -> list[Plain]:
    """Read the same with a filter."""
    own = (await ctx.auth.require()).subject
    found = ctx.db.query(Plain).with_index(Plain.by_team, team=team_of(owner))
    return await found.filter(lambda row: row.owner == own).take(TAKE)


def team_of(owner: str) -> str:
    """The team of a user."""
    return f"team {int(owner) % TEAMS}"


async def compared(bench: Bench, store: StoreName, ruled: Any, by_hand: Any) -> float:
    """The rate with the rule, as a share of the rate with the filter by hand."""
    async with bench.databases.fresh(store) as url, app.open(url, max_connections=CALLERS) as backend:
        for table in ("plain", "ruled"):
            rows = [
                (format_id(table, backend.engine.clock.uuid7()), datetime.now(UTC), str(number % USERS), team, "x" * 50)
                for number in range(max(bench.sizes.rows, USERS))
                for team in (team_of(str(number % USERS)),)
            ]
            await load(url, table, ("id", "creation_time", "owner", "team", "text"), rows)
        users = [backend.with_identity(Identity(subject=str(number), issuer="bench")) for number in range(USERS)]
        sides = [
            Side(name, [_query(users, function, caller) for caller in range(CALLERS)])
            for name, function in (("rule", ruled), ("by hand", by_hand))
        ]
        return await compare(bench, *sides)


def _query(users: list[CallerBackend], function: Any, caller: int) -> Callable[[], Awaitable[None]]:
    choose = partial(random.Random(caller).randrange, USERS)

    async def call() -> None:
        number = choose()
        rows = await users[number].run_query(function, str(number))
        if not rows or any(row.owner != str(number) for row in rows):
            raise AssertionError(rows)

    return call


_STORES: tuple[StoreName, ...] = ("postgres", "sqlite")
_CASES = {"owner": (owned_ruled, owned_by_hand), "team": (team_ruled, team_by_hand)}
BENCHMARKS = tuple(
    Benchmark(
        f"rules_{store}_{case}",
        partial(compared, store=store, ruled=ruled, by_hand=by_hand),
        Bar(at_least=1 / 1.3),
    )
    for store in _STORES
    for case, (ruled, by_hand) in _CASES.items()
)
