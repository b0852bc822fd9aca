"""PostgreSQL goes away at the worst moment: nothing is lost, nothing happens twice, and who cannot know is told so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from programs import ledger
from programs.ledger import calls_are_kept, finished, hear_again
from stage.databases import administrator, end_all_connections
from stage.postgres import Moment, Proxy, Server, server
from stage.waits import SOON, events, until

from penstock import App, Backend, MutationCtx, QueryCtx, Table
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import DatabaseBusy, DatabaseUnavailable, Overloaded
from penstock.jobs.states import JobState
from penstock.testing import gate


async def answer(true: bool) -> bool:
    return true


async def test_a_connection_lost_before_the_commit_costs_one_more_run(postgres_url: str) -> None:
    async with ledger.app.open(postgres_url) as backend, administrator(postgres_url) as admin:
        await backend.run_mutation(ledger.open_account, owner="ada")
        with gate("commit.before", most=1) as held:
            call = asyncio.create_task(backend.run_mutation(ledger.add, owner="ada", amount=1))
            await held.arrived()
            connection = held.arrivals[0]["transaction"].session._connection
            await end_all_connections(admin)
            await until(lambda: answer(connection.is_closed()))
            held.open()
            assert await call == 1
        assert await backend.run_query(ledger.balance, owner="ada") == 1


@pytest.mark.parametrize("function", [ledger.balance_twice, ledger.balance_twice_or_nothing])
async def test_a_connection_lost_in_the_middle_of_a_query_costs_one_more_run(postgres_url: str, function: Any) -> None:
    async with ledger.app.open(postgres_url) as backend, administrator(postgres_url) as admin:
        await backend.run_mutation(ledger.open_account, owner="ada", balance=7)
        with ledger.held_between(1) as held:
            call = asyncio.create_task(backend.run_query(function, owner="ada"))
            await held.arrived()
            await end_all_connections(admin)
            held.open()
            assert await call == [7, 7]


async def test_a_server_that_only_reads_is_told_and_left_for_one_that_writes(postgres_url: str) -> None:
    async with ledger.app.open(postgres_url) as backend, administrator(postgres_url) as admin:
        await backend.run_mutation(ledger.open_account, owner="ada")
        name = await admin.fetchval("select current_database()")
        await admin.execute(f"alter database {name} set default_transaction_read_only = on")
        await end_all_connections(admin)
        async with ledger.app.open(postgres_url, database_wait=1.0, push_schema=False) as hasty:
            with pytest.raises(DatabaseUnavailable, match=r"is read-only: .* Connect to the primary") as caught:
                await hasty.run_mutation(ledger.add, owner="ada", amount=1)
            assert not caught.value.facts.get("uncertain")
        assert await backend.run_query(ledger.balance, owner="ada") == 0
        with ledger.held_between(1) as held:
            call = asyncio.create_task(backend.run_mutation(ledger.add, owner="ada", amount=1))
            await held.arrived()
            await admin.execute(f"alter database {name} reset default_transaction_read_only")
            held.open()
            assert await call == 1


app = App()
pauses: list[tuple[asyncio.Event, asyncio.Event]] = []  # of the next runs: that it has come, and that it may go on


class Line(Table):
    number: int


@app.internal_mutation
async def write_twice(ctx: MutationCtx) -> None:
    await ctx.db.insert(Line(number=1))
    if pauses:
        came, goes_on = pauses.pop()
        came.set()
        await goes_on.wait()
    await ctx.db.insert(Line(number=2))


@app.query
async def read_lines(ctx: QueryCtx) -> list[int]:
    return [line.number for line in await ctx.db.query(Line).collect()]


async def test_a_connection_lost_between_two_writes_costs_a_job_one_more_run(postgres_url: str) -> None:
    """The driver knows of it before the second one, whose statement is prepared on the connection."""
    async with (
        app.open(postgres_url, services=("worker",), max_connections=1) as backend,
        administrator(postgres_url) as admin,
    ):
        await backend.run_mutation(write_twice)
        pauses.append((came := asyncio.Event(), goes_on := asyncio.Event()))
        await backend.scheduler.run_after(timedelta(0), write_twice)
        await came.wait()
        watched = cast("Any", backend.engine.store)._connections._watched
        connections = [session._connection for session in watched]
        await end_all_connections(admin)
        await until(lambda: answer(all(connection.is_closed() for connection in connections)))
        goes_on.set()
        await finished(backend, 1)
        assert await backend.run_query(read_lines) == [1, 2, 1, 2]


losses: list[Any] = []  # administrators' connections, by which a run loses its own
ending: list[Any] = []


@app.internal_mutation
async def lose(ctx: MutationCtx) -> None:
    await ctx.db.insert(Line(number=1))
    if losses:
        ending.append(losses.pop())
        await end_all_connections(ending[0])
        ending.clear()
    await ctx.db.insert(Line(number=2))


async def test_a_job_that_loses_its_connection_again_and_again_goes_on_and_says_so(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with app.open(postgres_url, services=("worker",)) as backend, administrator(postgres_url) as admin:
        losses[:] = [admin] * 4
        await backend.scheduler.run_after(timedelta(0), lose)
        await until(lambda: not losses and not ending)  # until then looks for its end lose their connection, too
        await finished(backend, 1)
        assert await backend.run_query(read_lines) == [1, 2]
    lost = [one for one in events(caplog, "call.lost") if one["function"].endswith(":lose")]
    assert [one["attempts"] for one in lost] == [4]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_connection_lost_during_the_commit_is_told_as_uncertain(postgres_url: str, moment: Moment) -> None:
    async with Proxy(postgres_url).running() as proxy, ledger.app.open(proxy.url) as backend:
        await backend.run_mutation(ledger.open_account, owner="ada")
        proxy.cut(moment)
        with pytest.raises(DatabaseUnavailable) as caught:
            await backend.run_mutation(ledger.add, owner="ada", amount=1)
        assert caught.value.facts["uncertain"] is True
        assert proxy.cuts == 1, "it is not tried again behind the caller's back"
        assert await backend.run_query(ledger.balance, owner="ada") == (1 if moment == "after" else 0)
        assert await backend.run_mutation(ledger.add, owner="ada", amount=10) >= 10


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_job_whose_commit_was_lost_takes_effect_once(postgres_url: str, moment: Moment) -> None:
    async with (
        Proxy(postgres_url).running() as proxy,
        ledger.app.open(postgres_url) as outside,
        ledger.app.open(proxy.url, services=("worker",)) as backend,
    ):
        await outside.run_mutation(ledger.open_account, owner="ada")
        proxy.cut(moment, times=3)
        for _ in range(4):
            await outside.scheduler.run_after(timedelta(0), ledger.add, owner="ada", amount=1)
        await finished(outside, 4)
        # They share a transaction: if that was committed, there is nothing left to commit.
        assert proxy.cuts >= (3 if moment == "before" else 1)
        assert await backend.run_query(ledger.balance, owner="ada") == 4


async def test_a_table_that_is_changed_under_a_running_program_costs_one_more_run(postgres_url: str) -> None:
    async with ledger.app.open(postgres_url) as backend, administrator(postgres_url) as admin:
        for number in range(3):  # statements are prepared on the connection by now
            await backend.run_mutation(ledger.enter, what="x", number=number)
            assert len(await backend.run_query(ledger.entries, what="x")) == number + 1
        await admin.execute("alter table entry alter column what type varchar(100)")
        assert await backend.run_query(ledger.entries, what="x") == [0, 1, 2]
        await admin.execute("alter table entry alter column what type text")
        await backend.run_mutation(ledger.enter_after_looking, what="x")
        assert await backend.run_query(ledger.entries, what="x") == [0, 1, 2, 3]


def limit(backend: Backend, setting: str, milliseconds: int) -> None:
    """From now on functions, but not services, run on connections with this setting."""
    connections: Any = backend.engine.store._connections  # type: ignore[attr-defined]
    connections.route._settings[setting] = str(milliseconds)
    connections.drop_free()


async def test_a_statement_that_is_too_slow_is_stopped_in_the_database_too(postgres_url: str) -> None:
    async with (
        ledger.app.open(postgres_url, max_connections=1) as backend,
        administrator(postgres_url) as admin,
    ):
        limit(backend, "statement_timeout", 500)
        with pytest.raises(DatabaseBusy):
            await backend.run_query(ledger.sleep_in_the_database, seconds=600.0)

        async def nothing_runs() -> bool:
            found = "select count(*) = 0 from pg_stat_activity where state = 'active' and query like '%pg_sleep(%'"
            return bool(await admin.fetchval(found + " and pid <> pg_backend_pid()"))

        await until(nothing_runs)
        await backend.run_mutation(ledger.enter, what="after")
        assert await backend.run_query(ledger.entries, what="after") == [0]


async def reach(backend: Backend, job: Any, state: JobState) -> None:
    async def reached() -> bool:
        status = await backend.job(job)
        return status is not None and status.state is state

    await until(reached)


async def test_a_job_waits_for_a_lock_for_as_long_as_it_takes_and_fails_if_it_is_slow_itself(postgres_url: str) -> None:
    async with (
        ledger.app.open(postgres_url, services=("worker",)) as backend,
        administrator(postgres_url) as admin,
        administrator(postgres_url) as holder,
    ):
        with gate("worker.claimed", most=1) as claimed:
            waiting = await backend.scheduler.run_after(timedelta(0), ledger.enter, what="x")
            await claimed.arrived()
            limit(backend, "lock_timeout", 200)
            async with holder.transaction():
                await holder.execute("lock table entry in access exclusive mode")
                claimed.open()
                seen: set[object] = set()

                async def waited_three_times() -> bool:
                    seen.update(
                        await admin.fetchval(
                            "select array_agg(xact_start) from pg_stat_activity where wait_event_type = 'Lock'"
                        )
                        or ()
                    )
                    return len(seen) >= 3

                await until(waited_three_times)
        await reach(backend, waiting, JobState.SUCCESS)
        with gate("worker.claimed", most=1) as claimed:
            slow = await backend.scheduler.run_after(timedelta(0), ledger.enter_slowly, what="y", seconds=600.0)
            await claimed.arrived()
            limit(backend, "statement_timeout", 200)
        await reach(backend, slow, JobState.FAILED)
        assert await admin.fetchval("select count(*) from entry where what = 'y'") == 0


async def test_connections_that_users_hold_do_not_keep_a_worker_from_its_lease(postgres_url: str) -> None:
    settings: dict[str, Any] = {"max_connections": 2, "database_wait": 1.0, "lease": 4.0}
    async with ledger.app.open(postgres_url, services=("worker",), **settings) as backend:
        worker: Any = backend.services.services[0]
        await until(lambda: answer(worker.lease is not None))
        with gate("mutation.ran") as held:
            calls = [asyncio.create_task(backend.run_mutation(ledger.enter, what="x")) for _ in range(2)]
            await held.arrived(2)
            with pytest.raises(Overloaded):
                await backend.run_query(ledger.entries, what="x")
            lease, renewed_at = worker.lease, worker._lease.renewed_at
            await until(lambda: answer(worker._lease.renewed_at > renewed_at))
            assert worker.lease == lease
            held.open()
            await asyncio.gather(*calls)


def test_a_database_that_is_away_is_waited_for_as_long_as_the_setting_says() -> None:
    async def story(own: Server) -> None:
        async with ledger.app.open(own.url, database_wait=1.0) as backend:
            await own.stop()
            clock = SystemClock()
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: backend.run_query(ledger.entries, what="x"),
                lambda: backend.run_mutation(ledger.enter, what="x"),
                lambda: backend.scheduler.run_after(timedelta(0), ledger.enter, what="x"),
            ]
            for call in calls:
                before = clock.monotonic()
                with pytest.raises(DatabaseUnavailable):
                    await call()
                assert 0.6 < clock.monotonic() - before < Config().database_wait
            await own.start()
            cast("Any", backend.engine.store)._connections.wait = SOON
            await backend.run_mutation(ledger.enter, what="after")
            assert await backend.run_query(ledger.entries, what="after") == [0]
            await own.stop()  # and it is closed although its database is gone
        await own.start()

    with server() as own:
        asyncio.run(story(own))


def test_server_processes_that_are_killed_are_survived_and_workers_hear_again() -> None:
    """The server ends all connections and recovers, as after a crash of its own."""

    async def story(own: Server) -> None:
        async with (
            ledger.app.open(own.url) as front,
            ledger.app.open(own.url, services=("worker",), lease=600.0) as first,
            ledger.app.open(own.url, services=("worker",), lease=600.0) as second,
        ):
            await calls_are_kept(front, own.crash)
            await hear_again(front, first, second)

    with server() as own:
        asyncio.run(story(own))


async def test_a_worker_that_has_become_deaf_without_noticing_hears_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listening connection is dropped on the way: neither side is told."""
    monkeypatch.setattr("penstock.store.postgres.signals._CHECK_EVERY", 0.2)

    async with (
        Proxy(postgres_url).running() as proxy,
        ledger.app.open(postgres_url) as front,
        ledger.app.open(proxy.url, services=("worker",), lease=600.0) as deaf,
    ):
        await hear_again(front, deaf)
        for number in range(2):
            proxy.silence_listeners()
            await front.run_mutation(ledger.schedule_entries, what="missed", first=number, count=1)
            await finished(front, 2 * number + 2)
            await hear_again(front, deaf)
