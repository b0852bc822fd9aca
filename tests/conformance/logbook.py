"""What a store promises of the logbook: numbers of many processes add up, events are found, and both stay bounded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from conformance.bench import NOW, Bench, Suite, story
from penstock.observe.logbook import RAN, LogEvent
from penstock.store.nouns import logbook

ODD = 'it said: "\\ud800", NUL \x00, \ud83d and ☂ … %s :name'


def event(number: int, function: str = "shop:pay", level: int = 20, words: str = " shop:pay job_1 ") -> LogEvent:
    at = NOW + timedelta(seconds=number)
    return LogEvent(UUID(int=number), at, level, f"log.{number}", function, words, {"message": ODD, "n": number})


class Logbook(Suite):
    """`store.nouns.StoredLogbook`."""

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
        runs = [replace(event(1000 + n), level=RAN) for n in range(30)]
        await book.write(NOW, {}, [*events, *runs])
        now = NOW + timedelta(minutes=10)
        with pytest.MonkeyPatch.context() as less:
            for name, most in (("_MOST_NUMBERS", 30), ("_MOST_EVENTS", 50), ("_OF_ONE", 20)):
                less.setattr(logbook, name, most)
            assert 0 < await book.prune(now, 7) <= 7, "it is one bounded step"
            while await book.prune(now, 1000):
                pass
        assert {parts["success"] for parts in (await book.sums(NOW)).values()} == {3.0}
        kept = await book.events(999)
        assert 0 < len(kept) <= 50
        assert sum(one.function == "f0" for one in kept) <= 20
        assert sum(one.level == RAN for one in await book.events(999, level=RAN)) == 20
        await book.prune(NOW + timedelta(days=8), 1000)
        assert (await book.sums(NOW), await book.events(999)) == ({}, [])
