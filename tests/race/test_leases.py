"""The lease of a process: renewed in a third of its time, given back, and lost in time to stop what runs under it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from stage import ledger

from penstock.calls.lease import Lease
from penstock.errors import DatabaseUnavailable
from penstock.testing import TestClock

BOUND = 12.0  # the setting `lease`, of which a lease holds nine seconds
Lost = list[tuple[int, str]]


def keeper(engine: Any, *, fenced: bool = False) -> tuple[Lease, Lost]:
    lost: Lost = []

    async def note(number: int, reason: str) -> None:
        lost.append((number, reason))

    return Lease(engine, "test", note, fenced=fenced), lost


async def test_a_lease_is_renewed_in_a_third_of_its_time_and_given_back(database_url: str) -> None:
    clock = TestClock()
    async with ledger.app.open(database_url, clock=clock, lease=BOUND) as backend:
        lease, lost = keeper(backend.engine)
        assert await lease.keep()
        number = lease.number
        clock.advance(timedelta(seconds=2.9))
        assert not await lease.keep()
        assert lease.due == pytest.approx(0.1)
        clock.advance(timedelta(seconds=0.1))
        assert await lease.keep()
        clock.advance(timedelta(seconds=8.9))
        leases = backend.engine.store.leases
        assert (lease.number, await leases.find_expired(clock.now())) == (number, [])
        await lease.give_back()
        clock.advance(timedelta(seconds=9))
        assert (lease.number, await leases.find_expired(clock.now()), lost) == (None, [], [])


async def test_a_lease_that_another_process_took_away_is_lost_and_another_is_taken(database_url: str) -> None:
    clock = TestClock()
    async with ledger.app.open(database_url, clock=clock, lease=BOUND) as backend:
        lease, lost = keeper(backend.engine)
        await lease.keep()
        number = lease.number
        assert number is not None
        clock.advance(timedelta(seconds=10))
        await backend.engine.store.leases.rescue(number, clock.now(), lambda _jobs: [])
        assert not await lease.keep()
        assert (lease.number, lost) == (None, [(number, "another process took it over")])
        assert await lease.keep()
        assert lease.number not in {None, number}


@pytest.mark.parametrize("fenced", [False, True])
async def test_a_lease_that_cannot_be_renewed_is_lost_before_it_ends_unless_each_write_is_fenced(
    database_url: str, monkeypatch: pytest.MonkeyPatch, *, fenced: bool
) -> None:
    async def fail(*_: object) -> bool:
        raise DatabaseUnavailable("It is away.")

    clock = TestClock()
    async with ledger.app.open(database_url, clock=clock, lease=BOUND) as backend:
        lease, lost = keeper(backend.engine, fenced=fenced)
        await lease.keep()
        number = lease.number
        monkeypatch.setattr(backend.engine.store.leases, "renew", fail)
        clock.advance(timedelta(seconds=7.1))
        with pytest.raises(DatabaseUnavailable):
            await lease.keep()
        assert (lease.number, lost) == (number, [])
        clock.advance(timedelta(seconds=0.2))
        with pytest.raises(DatabaseUnavailable):
            await lease.keep()
        known = (number, "it could not be renewed in time")
        assert (lease.number, lost) == ((number, []) if fenced else (None, [known]))
