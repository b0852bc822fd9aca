"""What ``penstock migrate`` makes known to a database beside its tables, and which tables it puts triggers on.

Owns the comparison of what the app declares with what the database knows. Leaves making it known to the backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.app import Backend
from penstock.changes.interest import Interest
from penstock.crons.plan import CronPlan
from penstock.errors import DeclarationError
from penstock.outbox.older import Older
from penstock.pools.pool import PoolDefinition
from penstock.store.contract.changes import InterestRow
from penstock.store.contract.outboxes import OutboxRow
from penstock.store.contract.pools import PoolRow
from penstock.store.contract.tasks import TaskRow
from penstock.store.rows.tasks import newly

Noun = Literal["pool", "cron", "task", "outbox", "capture"]
What = Literal["new", "changed", "mended"]


@dataclass(frozen=True, slots=True)
class News:
    """Something that the database does not know as the app declares it.

    Attributes:
        noun: What it is; ``capture`` for triggers on a table.
        name: What it is called; of triggers the task or the outbox for which they capture, such as ``outbox:news``.
        table: The table that gets triggers.
        what: ``new``; ``changed``, if it was declared otherwise before; or ``mended``, of triggers that are not as they
            were made.
    """

    noun: Noun
    name: str
    table: str | None
    what: What


async def check_kinds(backend: Backend) -> None:
    """Refuse views and the like whose changes would be captured; this can be told before penstock's tables are there.

    Raises:
        DeclarationError: One of the tables of tasks and outboxes is none.
    """
    dialect, store = backend.engine.store.dialect, backend.engine.store
    outboxes: list[DeclaredOutbox] = [one for one in backend.app.outboxes if one.outbox.definition is not None]
    interests = [one.interest(dialect) for one in (*backend.app.tasks, *outboxes)]
    stored = await store.catalog.stored_tables(sorted({one.table for one in interests})) if interests else {}
    for one in interests:
        found = stored.get(one.table)
        if found is not None and found.kind != "table":
            raise DeclarationError(
                f"Interest {one.name}: {one.table} is a {found.kind}, whose changes cannot be captured.",
                fix="Name the tables it is made of.",
            )


async def news_for(backend: Backend, crons: Sequence[CronPlan], *, known: bool) -> list[News]:
    """What the database would learn of an app; functions are left out, which it learns of only for plain SQL.

    Args:
        backend: The app, and the database.
        crons: The crons that the app declares.
        known: Whether the database has penstock's own tables; if not, all of it is new.
    """
    seen = await _look(backend) if known else _Known()
    pools = [_of_pool(pool, seen.pools.get(pool.name)) for pool in backend.app.pool_definitions()]
    plans = [
        _news("cron", cron.name, seen.crons.get(cron.name), same=seen.crons.get(cron.name) == cron) for cron in crons
    ]
    found = [*pools, *plans, *_of_tasks(backend, seen), *_of_outboxes(backend, seen)]
    return [one for one in found if one is not None]


# ----- steps


@dataclass(frozen=True, slots=True)
class _Known:
    """What a database knows, by name."""

    pools: Mapping[str, PoolRow] = field(default_factory=dict)
    crons: Mapping[str, CronPlan] = field(default_factory=dict)
    tasks: Mapping[str, TaskRow] = field(default_factory=dict)
    outboxes: Mapping[str, OutboxRow] = field(default_factory=dict)
    interests: Sequence[InterestRow] = ()


async def _look(backend: Backend) -> _Known:
    store = backend.engine.store
    session = await store.begin_read()
    try:
        pools = await store.pools.list(session)
        crons = await store.crons.list(session, backend.engine.clock.now())
    finally:
        await session.rollback()
    return _Known(
        {row.name: row for row in pools},
        {kept.plan.name: kept.plan for kept, _ in crons},
        {row.plan.name: row for row in await store.tasks.list()},
        {row.plan.name: row for row in await store.outboxes.list()},
        await store.interests.list(),
    )


def _news(noun: Noun, name: str, known: object, *, same: bool) -> News | None:
    return None if same else News(noun, name, None, "new" if known is None else "changed")


def _of_pool(pool: PoolDefinition, known: PoolRow | None) -> News | None:
    names = ("name", "key_parallelism", "rate_limit", "key_rate_limit", "group", "ageing")
    same = (
        known is not None
        and known.declared == pool.max_parallelism
        and all(getattr(known, name) == getattr(pool, name) for name in names)
    )
    return _news("pool", pool.name, known, same=same)


def _of_tasks(backend: Backend, seen: _Known) -> list[News | None]:
    dialect, found = backend.engine.store.dialect, list[News | None]()
    for one in backend.app.tasks:
        plan, known = one.plan(dialect), seen.tasks.get(one.task.name)
        found.append(_news("task", plan.name, known, same=not newly(plan, known)[0]))
        if known is None or known.plan.version <= plan.version:
            found.append(_captured(one.interest(dialect), seen))
    return found


def _of_outboxes(backend: Backend, seen: _Known) -> list[News | None]:
    dialect, found = backend.engine.store.dialect, list[News | None]()
    declared: list[DeclaredOutbox] = list(backend.app.outboxes)
    for one in declared:
        plan, known = one.plan(), seen.outboxes.get(one.outbox.name)
        if known is not None and known.plan.version > plan.version:
            continue  # it stays as another release has declared it
        found.append(_news("outbox", plan.name, known, same=known is not None and known.plan == plan))
        if one.outbox.definition is not None:
            backfill = None if known is None else known.backfill
            order = one.outbox.order_by if backfill is None else Older.parse(backfill).order
            found.append(_captured(one.interest(dialect, order), seen))
    return found


def _captured(interest: Interest, seen: _Known) -> News | None:
    known = [row for row in seen.interests if row.interest.name == interest.name]
    same = [row for row in known if row.interest.digest == interest.digest]
    what: What = "mended" if same else "changed" if known else "new"
    return None if same and same[0].state == "ok" else News("capture", interest.name, interest.table, what)
