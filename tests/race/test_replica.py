"""Watched queries that are read on a replica: they show all that is committed, as on the primary, or are read there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from stage.databases import connected
from stage.postgres import Replica, Server, replicated
from stage.waits import SOON, events, until
from stage.watching import settle

from penstock import App, Index, MutationCtx, QueryCtx, Table
from penstock.app import Backend
from penstock.changes.demand import Demands
from penstock.changes.position import Position
from penstock.clock import random_of
from penstock.errors import ConfigError, DatabaseBusy
from penstock.live.view import View
from penstock.services.live import feed as feed_module
from penstock.services.live.live import LiveQueries
from penstock.store.postgres import replica as replica_module
from penstock.store.postgres import store as store_module
from penstock.store.postgres.replica import PostgresReplica
from penstock.store.postgres.session import PostgresSession
from penstock.testing.gates import Gate

app = App()
WHOLE = 100
MANY = "insert into account select gen_random_uuid(), '2030-01-01', 'none', 0 from generate_series(1, 3000)"
STEPS = ["write", "write", "write", "elsewhere", "tick", "tick", "tick", "leave", "replay"]


class Account(Table):
    name: str
    amount: int

    by_name = Index("name")


@app.query
async def amount(ctx: QueryCtx, name: str, again: int = 0) -> int:
    row = await ctx.db.query(Account).with_index(Account.by_name, name=name).unique()
    assert row is not None
    return row.amount


between: list[Gate] = []


@app.query
async def slow(ctx: QueryCtx) -> int:
    await between[-1].pass_through()
    return await amount(ctx, "two")


@app.mutation
async def fill(ctx: MutationCtx) -> None:
    for name in ("one", "two"):
        await ctx.db.insert(Account(name=name, amount=WHOLE // 2))


def moved(by: int) -> str:
    return f"update account set amount = amount + case name when 'one' then {-by} else {by} end"


class Watcher:
    """A client that watches both accounts, whose ticks the test makes. What it has seen is of one snapshot."""

    def __init__(self, backend: Backend) -> None:
        self.live = LiveQueries(backend.runner, app.definitions())
        self._backend = backend
        self._clock = 0
        self.seen: dict[int, Any] = {}
        self._where = ""
        self._begin = self.replica.begin
        self.replica.begin = self._begin_and_tell  # type: ignore[method-assign]
        self.join()

    @property
    def replica(self) -> PostgresReplica:
        """That of its process."""
        replica = self._backend.engine.store.replica
        assert isinstance(replica, PostgresReplica)
        return replica

    async def _begin_and_tell(self, position: Position | None, since: int) -> PostgresSession:
        session = await self._begin(position, since)
        self._where = "primary" if session.shown is None else "replica"
        return session

    async def returns(self) -> None:
        """Wait until its process reads on the replica again."""
        await until(lambda: self.replica._is_used)

    def join(self) -> None:
        self.view: View = self.live.view()
        for number, name in enumerate(("one", "two")):
            self.view.add(number, amount, {"name": name, "again": 0})

    async def look(self) -> tuple[int, str]:
        """What it sees after a tick: one account, and where the tick was read."""
        await settle(self.live)
        step = self.view.step()
        assert step is not None
        assert not [one.error for one in step.answers.values() if one.error]
        self.seen |= {number: answer.result for number, answer in step.answers.items()}
        assert self.seen[0] + self.seen[1] == WHOLE
        assert step.tick.clock >= self._clock
        self._clock = step.tick.clock
        return self.seen[1], self._where


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "_AGAIN_AFTER", 0.01)


async def test_each_tick_shows_all_that_is_committed_however_far_the_replica_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two processes with a replica, demands that end often, writers that take their time."""
    monkeypatch.setattr(Demands, "room", 40)
    monkeypatch.setattr(replica_module, "PATIENCE", 0.05)
    choice, read_at = random_of(7), list[str]()
    with replicated() as (primary, standby):
        async with app.open(primary.url) as backend:
            await backend.run_mutation(fill)
        async with AsyncExitStack() as stack:
            backends = [await stack.enter_async_context(app.open(primary.url, read_url=standby.url)) for _ in range(2)]
            watchers = [Watcher(backend) for backend in backends]
            other, *writers = [await stack.enter_async_context(connected(primary.url)) for _ in range(4)]
            await other.execute("create table elsewhere (id int)")
            is_open, is_paused, total, inside = [False] * 3, False, WHOLE // 2, 0
            for _ in range(200):
                match choice.choice(STEPS):
                    case "write":
                        number = choice.randrange(3)
                        by = choice.randint(-3, 3)
                        if is_open[number]:
                            end = choice.choice(["commit", "commit", "rollback"])
                            await writers[number].execute(end)
                            total, inside = total + (inside if end == "commit" else 0), 0
                            is_open[number] = False
                        elif any(is_open):  # it would wait
                            await other.execute("insert into elsewhere values (1)")
                        else:
                            await writers[number].execute("begin")
                            await writers[number].execute(moved(by))
                            is_open[number], inside = True, by
                    case "elsewhere":
                        await other.execute("insert into elsewhere values (1)")
                    case "leave":
                        watcher = choice.choice(watchers)
                        watcher.view.close()
                        watcher.join()
                    case "replay":
                        await (standby.resume() if is_paused else standby.pause())
                        is_paused = not is_paused
                    case _:
                        seen, where = await choice.choice(watchers).look()
                        assert seen == total, where
                        read_at.append(where)
    assert {"primary", "replica"} == set(read_at)


@dataclass
class Show:
    """A primary, its replica, a watcher, and two who write on the primary."""

    primary: Server
    standby: Replica
    watcher: Watcher
    writer: Any
    other: Any

    async def flush(self) -> None:
        """Make durable what was written."""
        await self.other.execute("insert into elsewhere values (1)")


@asynccontextmanager
async def show(settings: str = "") -> AsyncIterator[Show]:
    with replicated(settings) as (primary, standby):
        async with app.open(primary.url) as backend:
            await backend.run_mutation(fill)
        async with (
            app.open(primary.url, read_url=standby.url) as backend,
            connected(primary.url) as writer,
            connected(primary.url) as other,
        ):
            await other.execute("create table elsewhere (id int)")
            yield Show(primary, standby, Watcher(backend), writer, other)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What happens between the question which transactions are open on a replica, and the snapshot there."""
    left, replayed = list[tuple[Any, ...]](), PostgresReplica._wait_for

    async def replayed_before_it_happens(*args: Any) -> Any:
        found = await replayed(*args)
        while left:
            stage, connection, *statements = left.pop()
            for statement in statements:
                await connection.execute(statement)
            await stage.flush()
            await stage.standby.follow(stage.primary)
        return found

    monkeypatch.setattr(PostgresReplica, "_wait_for", replayed_before_it_happens)
    monkeypatch.setattr(replica_module, "PATIENCE", SOON)
    return left


async def test_what_begins_or_ends_while_a_tick_begins_is_seen(
    meanwhile: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with show() as stage:
        watcher, writer = stage.watcher, stage.writer
        await writer.execute("begin")
        await writer.execute(moved(7))  # nobody watches, so it is not captured
        for _ in range(2):
            assert await watcher.look() == (50, "primary")
        await stage.flush()
        meanwhile.append((stage, writer, "commit"))
        watcher.view.add(2, amount, {"name": "two", "again": 1})
        await watcher.look()
        assert watcher.seen[2] == watcher.seen[1], "both are of one snapshot"
        assert not meanwhile
        assert await watcher.look() == (57, "replica")

        meanwhile.append((stage, writer, "begin", moved(1)))
        assert await watcher.look() == (57, "replica")
        await writer.execute("commit")
        assert await watcher.look() == (58, "replica"), "one that was open in the snapshot"
        meanwhile.append((stage, writer, moved(1)))
        watcher.view.add(3, amount, {"name": "two", "again": 2})
        assert await watcher.look() == (59, "replica")
        assert watcher.seen[3] == 59
        meanwhile.append((stage, writer, "begin", moved(1), MANY, "commit"))
        await writer.execute(MANY)
        watcher.view.add(4, amount, {"name": "two", "again": 3})
        assert await watcher.look() == (60, "replica"), "behind more changes than are read at once"
        assert watcher.seen[4] == 60
        monkeypatch.setattr(feed_module, "_MOST_CHANGES", 1000)
        meanwhile.append((stage, writer, "begin", moved(1), "commit"))
        assert (await watcher.look())[1] == "replica", "more than all that are read in one tick"
        assert await watcher.look() == (61, "replica")
        assert not meanwhile


async def test_what_the_primary_showed_before_it_was_durable_is_shown_on() -> None:
    async with show("wal_writer_delay = 10s\nwal_writer_flush_after = 1GB\n") as stage:
        watcher, writer = stage.watcher, stage.writer
        for _ in range(2):
            await watcher.look()
        await stage.flush()
        assert await watcher.look() == (50, "replica")
        await writer.execute("set synchronous_commit = off")
        for statement in ("begin", moved(1)):
            await writer.execute(statement)
        await stage.flush()
        await writer.execute("commit")
        assert watcher.replica.leave(DatabaseBusy("It is said to be slow."))
        assert await watcher.look() == (51, "primary")
        await watcher.returns()
        watcher.view.expect()
        assert await watcher.look() == (51, "primary"), "the replica does not have it"
        await stage.flush()
        watcher.view.expect()
        assert await watcher.look() == (51, "replica")


async def test_who_watches_does_not_notice_what_becomes_of_the_replica(caplog: pytest.LogCaptureFixture) -> None:
    """It cancels a slow query, is killed, comes back, and becomes a primary, whose data nobody sees."""
    between.append(Gate(1))

    def was_left() -> bool:
        told = events(caplog, "live.replica_left")
        caplog.clear()
        return len(told) == 1

    async with show("max_standby_streaming_delay = 0\n") as stage:
        watcher, standby, other = stage.watcher, stage.standby, stage.other

        async def is_read_there() -> bool:
            return await watcher.look() == (50, "replica")

        await until(is_read_there)
        await standby.pause()
        await stage.flush()
        assert (await watcher.replica.behind() or 0) > 0
        await standby.resume()
        await standby.follow(stage.primary)
        caplog.clear()
        watcher.view.add(2, slow, {})
        await watcher.live.tick()
        await between[-1].arrived()
        for statement in (moved(1), "vacuum account"):
            await other.execute(statement)
        await stage.flush()
        await standby.follow(stage.primary)
        between[-1].open()
        assert (await watcher.look())[0] == watcher.seen[2] == 51
        assert was_left()

        await watcher.returns()
        await standby.kill()
        while await watcher.replica.behind() is not None:  # processes outlive the killed one by a moment
            pass
        for total in (52, 53):
            await other.execute(moved(1))
            assert await watcher.look() == (total, "primary")
        assert was_left()
        await standby.revive()
        await watcher.returns()
        await other.execute(moved(1))
        assert await watcher.look() == (54, "replica")

        watcher.replica._timeline += 1  # as after a failover
        assert await watcher.look() == (54, "primary")
        assert was_left()
        await watcher.returns()
        watcher.view.expect()
        assert await watcher.look() == (54, "replica")

        standby.promote()
        async with connected(standby.url) as there:
            await there.execute(moved(9))
        await other.execute(moved(1))
        assert await watcher.look() == (55, "primary")
        with pytest.raises(ConfigError, match="no replica"):
            await watcher.replica._check()
        assert was_left()


@pytest.mark.long
async def test_what_is_no_replica_of_the_database_is_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (replica_module, store_module):  # on a busy machine a server answers late
        monkeypatch.setattr(module, "PATIENCE", 30.0)
    with replicated() as (primary, standby):
        async with connected(primary.url) as connection:
            await connection.execute("create database other")
        await standby.follow(primary)
        for url, why in (
            (primary.url, "it takes writes"),
            (standby.url.replace("/postgres?", "/other?"), "a replica of another database"),
        ):
            with pytest.raises(ConfigError, match=why):
                async with app.open(primary.url, read_url=url):
                    pass
        for database, url in (("sqlite:///x.db", primary.url), (primary.url, "sqlite:///x.db")):
            with pytest.raises(ConfigError, match="only a PostgreSQL database has replicas"):
                async with app.open(database, read_url=url):
                    pass
        assert not events(caplog, "live.replica_left")
        async with app.open(primary.url, read_url="postgresql://nobody@127.0.0.1:1/none") as backend:
            await backend.run_mutation(fill)
            assert (await Watcher(backend).look())[1] == "primary"
        assert len(events(caplog, "live.replica_left")) == 1, "it may come later"
