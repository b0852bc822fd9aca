"""Reads ahead for jobs that share a transaction: each job sees what those before it have done, as if it ran alone."""

from __future__ import annotations

from typing import Any

import pytest
from stage.needs import examples

from penstock import App, Index, MutationCtx, Table, gte
from penstock.clock import random_of
from penstock.testing import TestApp
from penstock.transaction.shared import Part

app = App()
pool = app.workpool("work", max_parallelism=200)
OWNERS = ["a", "b", "c", "d", ""]


class Item(Table):
    owner: str
    kind: int
    value: int

    by_owner = Index("owner", "kind")


Found = list[tuple[str, int, int]]


@app.internal_mutation
async def act(ctx: MutationCtx, verb: str, owner: str, kind: int, other: str, raises: bool) -> Found:
    """Read rows by an index, and change them; what was read."""
    query: Any = ctx.db.query(Item)
    if verb == "all":
        rows = await query.with_index(Item.by_owner, owner=owner).collect()
    elif verb == "from":
        rows = await query.with_index(Item.by_owner, owner=owner, kind=gte(kind)).take(3)
    else:
        rows = await query.with_index(Item.by_owner, owner=owner, kind=kind).take(2)
    for row in rows:
        if verb == "delete":
            await ctx.db.delete(Item, row.id)
        else:
            await ctx.db.patch(Item, row.id, value=row.value + 1, owner=other if verb == "move" else row.owner)
    if verb in {"insert", "all"} or not rows:
        await ctx.db.insert(Item(owner=owner, kind=kind, value=0))
    if raises:
        raise ValueError(verb)
    return sorted((row.owner, row.kind, row.value) for row in rows)


@app.internal_mutation
async def read_all(ctx: MutationCtx) -> Found:
    return sorted([(row.owner, row.kind, row.value) async for row in ctx.db.query(Item)])


def act_on(rows: list[list[Any]], verb: str, owner: str, kind: int, other: str, raises: bool) -> Found:
    """The same for a list in Python."""
    chosen = [row for row in rows if row[0] == owner]
    if verb == "from":
        chosen = sorted((row for row in chosen if row[1] >= kind), key=lambda row: row[1])[:3]
    elif verb != "all":
        chosen = [row for row in chosen if row[1] == kind][:2]
    found = sorted((row[0], row[1], row[2]) for row in chosen)
    if raises:
        return found
    for row in chosen:
        if verb == "delete":
            rows.remove(row)
        else:
            row[2] += 1
            row[0] = other if verb == "move" else row[0]
    if verb in {"insert", "all"} or not found:
        rows.append([owner, kind, 0])
    return found


@pytest.mark.both_stores
@pytest.mark.parametrize("seed", range(examples(6)))
async def test_jobs_read_what_jobs_before_them_have_left(
    database_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, ahead = random_of(seed), list[int]()
    keep = Part.keep

    def keeping(part: Part, rows: Any) -> None:
        ahead.append(len(part._shared.ahead))
        keep(part, rows)

    monkeypatch.setattr(Part, "keep", keeping)
    verbs = dice.choices(["get", "insert", "delete", "move", "all", "from"], k=3)
    async with TestApp(app, database_url) as backend:
        rows: list[list[Any]] = []
        for _ in range(4):
            calls: list[dict[str, Any]] = [
                {
                    "verb": dice.choice(verbs),
                    "owner": dice.choice(OWNERS),
                    "kind": dice.randint(0, 3),
                    "other": dice.choice(OWNERS),
                    "raises": dice.random() < 0.02,
                }
                for _ in range(40)
            ]
            works = await pool.enqueue_batch(backend, act, calls)
            await backend.run_until_idle(raise_errors=False)
            for work, call in zip(works, calls, strict=True):
                expected = act_on(rows, **call)
                found = await backend.job(work)
                assert found is not None
                if not call["raises"]:
                    assert found.result == [list(one) for one in expected], call
            assert await backend.run_mutation(read_all) == sorted(map(tuple, rows))
    assert any(ahead) == database_url.startswith("postgres"), "else nothing was read ahead"
