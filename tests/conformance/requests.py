"""What a store promises of requests: one takes effect once, and is forgotten in time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.bench import NOW, Bench, Suite, story
from penstock.errors import Conflict
from penstock.store.nouns.requests import RequestKey

ONE = RequestKey("a session", 3, -(2**63))


class Requests(Suite):
    """`store.nouns.Requests`."""

    @story
    async def test_a_request_is_recorded_once_with_its_result_for_a_day(self, bench: Bench) -> None:
        requests = bench.store.requests
        session = await bench.store.begin_write()
        await requests.record(session, ONE, '"undone"', NOW)
        await session.rollback()
        assert await requests.find(ONE) is None
        assert await bench.writing(lambda session: requests.record(session, ONE, '"done"', NOW))
        assert not await bench.writing(lambda session: requests.record(session, ONE, '"again"', NOW))
        assert await requests.find(ONE) == '"done"'
        for other in (
            RequestKey("another", 3, ONE.call),
            RequestKey(ONE.session, 4, ONE.call),
            RequestKey("a session", 3, 0),
        ):
            assert await requests.find(other) is None
        assert [await requests.prune(NOW + timedelta(hours=hours), 10) for hours in (23, 25, 25)] == [0, 1, 0]
        assert await requests.find(ONE) is None
        assert [await requests.reserve(session, NOW) for session in ("7", "7", "8")] == [True, False, True]

    @story
    async def test_a_snapshot_shows_what_took_effect_before_it(self, bench: Bench) -> None:
        requests, other = bench.store.requests, RequestKey("another", 3, 1)
        before = await bench.store.begin_read()
        try:
            await bench.titles(before)  # it has its snapshot
            await bench.writing(lambda session: requests.record(session, ONE, "1", NOW))
            assert await requests.find_shown(before, [ONE, other]) == set()
        finally:
            await before.rollback()
        assert await bench.reading(lambda session: requests.find_shown(session, [ONE, other])) == {ONE}

    @story
    async def test_of_two_that_run_at_the_same_time_one_conflicts(self, bench: Bench) -> None:
        if self.one_writer:
            return
        first, second = await bench.store.begin_write(), await bench.store.begin_write()
        try:
            await bench.titles(second)  # it has its snapshot
            assert await bench.store.requests.record(first, ONE, "1", NOW)
            await first.commit()
            with pytest.raises(Conflict):
                await bench.store.requests.record(second, ONE, "2", NOW)
        finally:
            await first.rollback()
            await second.rollback()
