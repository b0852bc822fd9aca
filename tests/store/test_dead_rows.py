"""What was deleted while somebody holds an old snapshot stays where it was; claims do not pass over it each time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.nouns.jobs import Room
from penstock.store.open import make_store
from penstock.store.postgres.jobs import PostgresJobs
from penstock.store.push.migrate import push

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MANY = 3_000


class Held(SystemClock):
    """A clock that stands still until a test moves it."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


async def ready(connection: Any, first: int, last: int) -> None:
    """Store jobs of these ranks."""
    await connection.execute(
        "insert into penstock.ready_job (id, pool, function, kind, args, priority, rank, run_at, attempt, enqueued_at)"
        " select gen_random_uuid(), 'default', 'm:f', 'action', '{}', 0, n, $1, 0, $1 from generate_series($2::int, $3)"
        " n",
        NOW, first, last,
    )  # fmt: skip


async def test_dead_rows_before_the_first_job_are_seldom_passed_over(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, passed = Held(), list[int]()
    store = make_store(Config(database=postgres_url), clock)
    await store.open()
    await push(store, [])
    assert isinstance(store.jobs, PostgresJobs)
    lease = await store.leases.take("test", timedelta(days=1), NOW)
    connection, holder = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    learn = store.jobs._heads.learn

    def learned(began: float, pools: Any, number: int, *found: Any) -> None:
        passed.append(number)
        learn(began, pools, number, *found)

    monkeypatch.setattr(store.jobs._heads, "learn", learned)

    async def claim(limit: int = 10) -> tuple[int, bool]:
        """How many jobs it gives, and whether it wants to look again."""
        got = await store.jobs.claim(lease, limit, [Room("default", limit)], NOW)
        return len(got.jobs), got.again is not None

    try:
        await ready(connection, 1, MANY)
        await holder.execute("begin isolation level repeatable read; select from penstock.ready_job limit 1")
        assert await claim(MANY) == (MANY, False)
        await ready(connection, MANY + 1, MANY + 20)
        assert await claim() == (10, False)
        assert passed[-1] > MANY, "all that is dead was passed over, which is remembered"
        await ready(connection, -5, -5)
        assert await claim() == (10, False)
        assert passed[-1] < 100
        assert await claim() == (0, True), "it is said when jobs that come before all others will be found"
        clock.seconds += 1_000
        assert await claim() == (1, True)
        await holder.execute("rollback")
        await connection.execute("vacuum penstock.ready_job")
        clock.seconds += 1_000
        assert await claim() == (0, False), "from now on each look is from the very first"
        await ready(connection, -6, -6)
        assert await claim() == (1, False)
    finally:
        await connection.close()
        await holder.close()
        await store.close()
