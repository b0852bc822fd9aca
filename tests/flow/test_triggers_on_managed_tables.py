"""Users put triggers on managed tables: what functions read is what the triggers have made of it, at each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from stage.databases import run_sql
from stage.needs import examples

from penstock import App, Index, MutationCtx, Table
from penstock.clock import random_of
from penstock.testing import TestApp

app = App()
pool = app.workpool("work", max_parallelism=200)
OWNERS = ["a", "b", "c"]
VERBS = ["add", "bump", "remove", "entries", "entry", "account", "grow"]


class Account(Table):
    owner: str
    n: int = 0
    touched: int = 0

    by_owner = Index("owner")


class Entry(Table):
    owner: str
    n: int = 0

    by_owner = Index("owner")


TRIGGERS = {  # what each does after which event
    "on_insert": ("insert", "update {entry} set n = n + 10 where owner = new.owner"),
    "on_update": ("update of n", "update {entry} set n = n + 1 where owner = new.owner"),
    "on_touch": ("update of n", "update {account} set touched = touched + 1 where {id} = new.{id}"),
    "on_delete": ("delete", "update {entry} set n = n - 1000 where owner = old.owner"),
}


def trigger(name: str, postgres: bool) -> list[str]:
    event, does = TRIGGERS[name]
    does = does.format(entry="entry", account="account", id="id")
    if not postgres:
        return [f"create trigger {name} after {event} on account for each row begin {does}; end"]
    return [
        f"create function {name}() returns trigger language plpgsql as $$ begin {does}; return null; end $$",
        f"create trigger {name} after {event} on account for each row execute function {name}()",
    ]


@app.internal_mutation
async def start(ctx: MutationCtx) -> list[str]:
    return [await ctx.db.insert(Entry(owner=owner)) for owner in OWNERS]


@app.internal_mutation
async def act(ctx: MutationCtx, steps: list[list[str]], entries: dict[str, str]) -> list[Any]:
    """Take steps, one after another; what each has seen."""
    seen: list[Any] = []
    for verb, owner in steps:
        account = await ctx.db.query(Account).with_index(Account.by_owner, owner=owner).first()
        found = await ctx.db.query(Entry).with_index(Entry.by_owner, owner=owner).collect()
        known = await ctx.db.get(Entry, entries[owner])  # type: ignore[arg-type]
        assert known is not None
        if verb == "add":
            await ctx.db.insert(Account(owner=owner))
        elif verb == "grow":
            seen.append((await ctx.db.patch(Entry, known.id, n=known.n + 100)).n)
        elif account is not None and verb == "bump":
            changed = await ctx.db.patch(Account, account.id, n=account.n + 1)
            seen.append([changed.n, changed.touched])
        elif account is not None and verb == "remove":
            await ctx.db.delete(Account, account.id)
        elif verb == "entries":
            seen.append([row.n for row in found])
        elif verb == "entry":
            seen.append(known.n)
        elif verb == "account":
            seen.append(None if account is None else [account.n, account.touched])
    return seen


@dataclass
class Model:
    """The rows, and the triggers that there are."""

    triggers: set[str] = field(default_factory=set)
    accounts: dict[str, list[list[int]]] = field(default_factory=lambda: {owner: [] for owner in OWNERS})
    entries: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OWNERS, 0))

    def act(self, steps: list[list[str]]) -> list[Any]:
        return [seen for verb, owner in steps for seen in self._step(verb, owner)]

    def _step(self, verb: str, owner: str) -> list[Any]:
        accounts = self.accounts[owner]
        if verb == "add":
            accounts.append([0, 0])
            self.entries[owner] += 10 * ("on_insert" in self.triggers)
        elif verb == "grow":
            self.entries[owner] += 100
            return [self.entries[owner]]
        elif verb == "bump" and accounts:
            accounts[0][0] += 1
            accounts[0][1] += "on_touch" in self.triggers
            self.entries[owner] += "on_update" in self.triggers
            return [list(accounts[0])]
        elif verb == "remove" and accounts:
            accounts.pop(0)
            self.entries[owner] -= 1000 * ("on_delete" in self.triggers)
        elif verb == "entries":
            return [[self.entries[owner]]]
        elif verb == "entry":
            return [self.entries[owner]]
        elif verb == "account":
            return [list(accounts[0]) if accounts else None]
        return []


@pytest.mark.both_stores
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize("seed", range(examples(20)))
async def test_functions_see_what_triggers_change(database_url: str, seed: int, shared: bool) -> None:
    dice, model, postgres = random_of(seed), Model(), database_url.startswith("postgres")
    async with TestApp(app, database_url) as backend:
        entries = dict(zip(OWNERS, await backend.run_mutation(start), strict=True))
        for _ in range(4):
            if name := dice.choice([None, *TRIGGERS.keys() - model.triggers]):
                model.triggers.add(name)
                await run_sql(database_url, *trigger(name, postgres))
            calls: list[dict[str, Any]] = [
                {
                    "steps": [[dice.choice(VERBS), dice.choice(OWNERS)] for _ in range(dice.randint(1, 8))],
                    "entries": entries,
                }
                for _ in range(8)
            ]
            if not shared:
                for call in calls:
                    assert await backend.run_mutation(act, call["steps"], entries) == model.act(call["steps"])
                continue
            works = await pool.enqueue_batch(backend, act, calls)
            await backend.run_until_idle()
            for work, call in zip(works, calls, strict=True):
                found = await backend.job(work)
                assert found is not None
                assert found.result == model.act(call["steps"]), call["steps"]
