"""What a store promises the doors: of requests, API keys, the audit log, sessions of the dashboard, and the logbook."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from conformance.bench import NOW, Bench, Suite, story
from penstock.errors import Conflict
from penstock.observe.logbook import RAN, LogEvent
from penstock.store.nouns import logbook
from penstock.store.nouns.api_keys import ApiKeyRow
from penstock.store.nouns.audit import AuditRow
from penstock.store.nouns.requests import RequestKey

ONE = RequestKey("a session", 3, -(2**63))
ODD = 'it said: "\\ud800", NUL \x00, \ud83d and ☂ … %s :name'


def event(number: int, function: str = "shop:pay", level: int = 20, words: str = " shop:pay job_1 ") -> LogEvent:
    at = NOW + timedelta(seconds=number)
    return LogEvent(UUID(int=number), at, level, f"log.{number}", function, words, {"message": ODD, "n": number})


class Doors(Suite):
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

    @story
    async def test_a_key_is_found_by_its_hash_until_it_is_revoked(self, bench: Bench) -> None:
        keys, until = bench.store.api_keys, NOW + timedelta(days=90)
        assert await keys.create("b", "hash b", ["read", "write"], NOW, until)
        assert await keys.create("a", "hash a", [], NOW, None)
        assert not await keys.create("a", "another", [], NOW, None)
        b = ApiKeyRow("b", ("read", "write"), NOW, until)
        assert (await keys.find("hash b"), await keys.find("another")) == (b, None)
        assert await keys.list() == [ApiKeyRow("a", (), NOW, None), b]
        assert (await keys.revoke("b"), await keys.revoke("b")) == (True, False)
        assert await keys.find("hash b") is None

    @story
    async def test_acts_are_kept_in_order_with_their_outcomes(self, bench: Bench) -> None:
        audit, first, second = bench.store.audit, UUID(int=1), UUID(int=2)
        await audit.begin(first, NOW, "Ada", "operate", "pause", {"name": "mail"})
        await audit.begin(second, NOW + timedelta(seconds=1), "Grace", "edit", "resume", {})
        await audit.end(first, "paused")
        one = AuditRow(first, NOW, "Ada", "operate", "pause", {"name": "mail"}, "paused")
        two = AuditRow(second, NOW + timedelta(seconds=1), "Grace", "edit", "resume", {}, None)
        assert await audit.list(10) == [two, one]
        assert (await audit.list(1), await audit.list(10, second)) == ([two], [one])
        assert (await audit.list(10, who="Ad"), await audit.list(10, act="res")) == ([one], [two])
        assert await audit.list(10, who="Ada", act="resume") == []
        assert await audit.prune(NOW + timedelta(days=399), 10) == 0
        assert await audit.prune(NOW + timedelta(days=400), 10) == 1
        assert await audit.list(10) == [two]

    @story
    async def test_a_session_is_found_until_it_expires_and_taken_once(self, bench: Bench) -> None:
        sessions, until = bench.store.dashboard_sessions, NOW + timedelta(hours=1)
        for name in ("a", "b", "c"):
            await sessions.create(name, f"content {name}", until)
        assert (await sessions.find("a", NOW), await sessions.find("x", NOW)) == ("content a", None)
        assert (await sessions.find("a", until), await sessions.find("a", until, last=True)) == (None, None)
        taken = await asyncio.gather(*(sessions.find("b", NOW, last=True) for _ in range(5)))
        assert sorted(map(str, taken)) == ["None"] * 4 + ["content b"]
        assert await sessions.find("b", NOW) is None
        assert (await sessions.prune(NOW, 10), await sessions.prune(until, 10), await sessions.prune(until, 10)) == (
            0,
            1,
            0,
        )

    @story
    async def test_numbers_of_many_processes_add_up_by_the_minute(self, bench: Bench) -> None:
        book = bench.store.logbook
        numbers = {f"function shop:{n}": {"success": 2.0, "database": 0.25, "-7": 1.0} for n in range(40)}
        turned = dict(reversed([*numbers.items()]))
        await asyncio.gather(*(book.write(NOW, one, []) for one in (numbers, turned) * 2))
        await book.write(NOW + timedelta(minutes=5), {"pool ☂": {"failed": 1.0}}, [])
        found = await book.sums(NOW - timedelta(minutes=1))
        assert found["function shop:39"] == {"success": 8.0, "database": 1.0, "-7": 4.0}
        assert (len(found), found["pool ☂"]) == (41, {"failed": 1.0})
        assert await book.sums(NOW + timedelta(minutes=4)) == {"pool ☂": {"failed": 1.0}}
        await book.write(NOW, {}, [])

    @story
    async def test_old_minutes_become_half_hours_and_no_number_is_lost_or_counted_twice(self, bench: Bench) -> None:
        book, begun = bench.store.logbook, NOW.replace(minute=0)
        for minute in range(0, 130, 10):  # thirteen of them, in five half hours
            numbers = {"pool a": {"success": 2.0, "-3": 2.0}, "pool b": {"success": 1.0}, "function f": {"error": 1.0}}
            await book.write(begun + timedelta(minutes=minute), numbers, [])
        now, far, tens = begun + timedelta(minutes=130), timedelta(hours=3), timedelta(minutes=10)
        before = await book.sums(begun), await book.series("jobs", begun, far)
        assert before[1] == [{"success": 39.0, "-3": 26.0}], "the total of all pools"
        assert [one["success"] for one in await book.series("pool a", begun, tens)] == [2.0] * 13
        await asyncio.gather(*(book.prune(now, 10) for _ in range(4)))
        assert (await book.sums(begun), await book.series("jobs", begun, far)) == before
        steps = await book.series("pool a", begun, tens)
        assert [one.get("success") for one in steps[:3]] == [6.0, None, None], "a half hour stands at its beginning"
        assert [one.get("success") for one in steps[4:]] == [2.0] * 9, "the last 90 minutes stay by the minute"
        await book.write(begun + timedelta(minutes=5), {"pool a": {"success": 1.0}}, [])  # of a clock that is behind
        await book.prune(now, 10)
        assert (await book.series("pool a", begun, tens))[0]["success"] == 7.0
        assert [await book.series(one, begun, far) for one in ("calls", "pool c")] == [[{"error": 13.0}], []]

    @story
    async def test_samples_of_processes_add_up_to_means_and_one_a_minute_is_enough(self, bench: Bench) -> None:
        book, found = (
            bench.store.logbook,
            {"jobs": {"samples": 1.0, "ready": 6.0}, "pool a": {"samples": 1.0, "ready": 6.0}},
        )
        assert not await book.is_sampled(NOW)
        await book.write(NOW, {"pool a": {"success": 1.0}}, [])
        assert not await book.is_sampled(NOW)
        await asyncio.gather(*(book.sample(NOW, found) for _ in range(3)))
        assert (await book.is_sampled(NOW), await book.is_sampled(NOW + timedelta(minutes=1))) == (True, False)
        (one,) = await book.series("jobs", NOW - timedelta(minutes=1), timedelta(minutes=5))
        assert (one["ready"] / one["samples"], one["success"]) == (6.0, 1.0)

    @story
    async def test_events_are_found_by_what_they_say_newest_first(self, bench: Bench) -> None:
        book = bench.store.logbook
        many = [event(1), event(2, "shop:payout", 40, " shop:payout job_2 "), event(3, words=" shop:pay job_11 ")]
        run = event(4, level=RAN)
        for _ in range(2):  # the answer to the first commit was lost
            await book.write(NOW, {}, [*many, run])
        assert await book.events(9) == [*reversed(many)], "runs are apart"
        assert await book.events(9, level=RAN, event="log.4") == [run]
        assert await book.events(1) == [many[2]]
        assert await book.events(9, below=UUID(int=3)) == [many[1], many[0]]
        assert await book.events(9, level=30) == await book.events(9, event="log.2") == [many[1]]
        assert await book.events(9, function="payout") == [many[1]]
        assert await book.events(9, words=[" shop:pay "]) == [many[2], many[0]]
        assert await book.events(9, words=[" job_1 ", " job_2 "]) == [many[1], many[0]]
        assert await book.events(9, words=["job_1"], function="pay") == [many[2], many[0]]
        assert await book.events(9, event="%") == await book.events(9, words=[]) == []

    @story
    async def test_what_is_old_or_too_much_is_forgotten(self, bench: Bench) -> None:
        book = bench.store.logbook
        for minute in range(10):
            numbers = {f"function f{n}": {"success": 1.0} for n in range(10)}
            await book.write(NOW + timedelta(minutes=minute), numbers, [])
        events = [event(n, f"f{n % 10 if n < 100 else 0}") for n in range(1, 201)]
        runs = [replace(event(1000 + n), level=RAN, name="function.ran") for n in range(30)]
        await book.write(NOW, {}, [*events, *runs])
        now = NOW + timedelta(minutes=10)
        with pytest.MonkeyPatch.context() as less:
            for name, most in (("_MOST_NUMBERS", 30), ("_MOST_HALF_HOURS", 5), ("_MOST_EVENTS", 50), ("_OF_ONE", 20)):
                less.setattr(logbook, name, most)
            assert 0 < await book.prune(now, 7) <= 7, "it is one bounded step"
            while await book.prune(now, 1000):
                pass
        assert {parts["success"] for parts in (await book.sums(NOW)).values()} == {2.0}, "the older half hour is gone"
        kept = await book.events(999)
        assert 0 < len(kept) <= 50
        assert sum(one.function == "f0" for one in kept) <= 20
        assert sum(one.level == RAN for one in await book.events(999, level=RAN)) == 20
        await book.prune(NOW + timedelta(days=8), 1000)
        assert (await book.sums(NOW), await book.events(999)) == ({}, [])
