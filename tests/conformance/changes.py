"""What a store promises of the change feed: its order, its readers and their fences, and the room it takes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from conformance.bench import NOW, TTL, Bench, Suite, after, story
from conformance.interests import change, declare, delete, insert, note, plainly, run, told
from conformance.taskbench import SPEC, task_of
from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING, Position
from penstock.errors import CursorInvalid, DeclarationError
from penstock.store.nouns.changes import Batch, Lag
from penstock.store.session import Session

READER = "reader"


class Changes(Suite):
    # ----- reading

    @story
    async def test_what_is_committed_is_read_once_and_in_order(self, bench: Bench) -> None:
        batch = await bench.store.changes.read(BEGINNING, 10)
        again = await bench.store.changes.read(batch.position, 10)
        assert (batch.changes, batch.complete, again.changes, again.complete) == ([], True, [], True)
        assert Position.parse(str(batch.position)) == batch.position
        for text in ("", "null", "[]", "{}", "7", '{"seen": "1", "batch": null, "last": 0, "high": 0}'):
            with pytest.raises(CursorInvalid):
                Position.parse(text)
        (number,) = await declare(bench, note("all"))
        await run(bench, *(insert(title, 1) for title in "abc"))
        first = await bench.store.changes.read(BEGINNING, 10)
        assert keys(first) == ["a", "b", "c"]
        assert first.complete
        assert {one.interest for one in first.changes} == {number}
        assert [one.seq for one in first.changes] == sorted({one.seq for one in first.changes})
        assert all(one.changed_at.tzinfo is not None for one in first.changes)
        await run(bench, change("a", 2))
        second = await bench.store.changes.read(first.position, 10)
        assert keys(second) == ["a"]
        assert keys(await bench.store.changes.read(second.position, 10)) == []

    @story
    async def test_a_large_batch_is_read_in_pieces(self, bench: Bench) -> None:
        await declare(bench, note("all"))
        await bench.write_notes(**{f"n{number:02}": number for number in range(25)})
        position = BEGINNING
        found: list[str] = []
        sizes: list[tuple[int, bool]] = []
        for _ in range(5):
            batch = await bench.store.changes.read(Position.parse(str(position)), 10)
            await run(bench, insert(f"later {len(sizes)}", 1))
            position, found = batch.position, found + keys(batch)
            sizes.append((len(batch.changes), batch.complete))
        assert found[:25] == [f"n{number:02}" for number in range(25)]
        assert found[25:] == [f"later {number}" for number in range(len(found) - 25)]
        assert sizes[:2] == [(10, False), (10, False)]

    @story
    async def test_of_many_interests_those_are_read_that_are_asked_for(self, bench: Bench) -> None:
        one, other = await declare(bench, note("one"), note("other", kinds=["delete"]))
        await run(bench, *(insert(f"n{number}", 1) for number in range(9)), delete("n3"))
        batch = await bench.store.changes.read(BEGINNING, 5, [other])
        assert [(each.kind, each.interest) for each in batch.changes] == [("delete", other)]
        assert batch.complete
        assert keys(await bench.store.changes.read(batch.position, 5)) == [], "what was not asked for is passed as well"
        assert len((await bench.store.changes.read(BEGINNING, 50, [one, other])).changes) == 11

    # ----- readers

    @story
    async def test_a_reader_begins_where_it_is_told_to(self, bench: Bench) -> None:
        changes = bench.store.changes
        await declare(bench, note("all"))
        await run(bench, insert("a", 1))
        middle = (await changes.read(BEGINNING, 10)).position
        await run(bench, insert("b", 1))
        assert await changes.register("beginning", NOW, BEGINNING)
        assert await changes.register("middle", NOW, middle)
        assert await changes.register("end", NOW)
        assert not await changes.register("end", after(5), BEGINNING)
        await run(bench, insert("c", 1))
        lease = await bench.lease()
        found = {name: await rest(bench, name, lease) for name in ("beginning", "middle", "end")}
        assert found == {"beginning": ["a", "b", "c"], "middle": ["b", "c"], "end": ["c"]}
        rows = await changes.readers()
        assert [(row.name, row.lease, row.registered_at, row.moved_at) for row in rows] == [
            (name, lease, NOW, NOW) for name in ("beginning", "end", "middle")
        ]

    @story
    async def test_a_reader_moves_with_what_it_has_done_if_that_is_where_it_is(self, bench: Bench) -> None:
        changes = bench.store.changes
        lease, position = await reading(bench)
        await run(bench, insert("a", 1), insert("b", 1))
        batch = await changes.read(position, 10)

        async def fail(session: Session) -> None:
            assert await changes.move(session, READER, lease, position, batch.position, after(1))
            raise RuntimeError

        with pytest.raises(RuntimeError):
            await bench.writing(fail)
        assert not await move(bench, lease + 1, position, batch), "another lease"
        assert not await bench.writing(
            lambda session: changes.move(session, "nobody", lease, position, batch.position, NOW)
        )
        (row,) = await changes.readers()
        assert (row.position, row.moved_at) == (position, NOW)
        assert await move(bench, lease, position, batch)
        (row,) = await changes.readers()
        assert (row.position, row.moved_at) == (batch.position, after(1))
        assert not await move(bench, lease, position, batch), "it has moved on"
        assert await changes.place(READER, after(2), position)
        assert not await changes.place("nobody", after(2))
        assert not await move(bench, lease, batch.position, batch), "whoever read it has to take it again"
        assert await rest(bench, READER, lease) == ["a", "b"]
        assert await changes.place(READER, after(3))
        assert await rest(bench, READER, lease) == []

    @story
    async def test_one_lease_at_a_time_reads_until_it_is_given_back_or_lost(self, bench: Bench) -> None:
        changes, leases = bench.store.changes, bench.store.leases
        first, position = await reading(bench)
        second, third = await bench.lease(now=after(60)), await bench.lease(now=after(60))
        assert await changes.take(READER, second) is None
        assert await changes.take(READER, first) == position, "it has it already"
        assert await changes.take("nobody", first) is None
        for lease in await leases.find_expired(NOW + TTL):
            await leases.rescue(lease, NOW + TTL, lambda _: [])
        await run(bench, insert("a", 1))
        batch = await changes.read(position, 10)
        assert await changes.take(READER, second) == position
        assert not await move(bench, first, position, batch), "who has lost its lease cannot move it"
        await leases.give_back(second)
        assert await changes.take(READER, third) == position
        assert not await move(bench, second, position, batch)
        assert await move(bench, third, position, batch)

    @story
    async def test_how_far_a_reader_is_behind(self, bench: Bench) -> None:
        changes = bench.store.changes
        _lease, position = await reading(bench)
        assert await changes.lag(position, 10) == Lag(0, None)
        (other,) = await declare(bench, note("other", kinds=["delete"]))
        await run(bench, *(insert(f"n{number}", 1) for number in range(9)))
        lag = await changes.lag(position, 100)
        first = (await changes.read(position, 1)).changes[0]
        assert lag == Lag(9, first.changed_at)
        assert (await changes.lag(position, 5)).rows == 5
        assert await changes.lag(position, 5, [other]) == Lag(0, None)
        batch = await changes.read(position, 4)
        assert (await changes.lag(batch.position, 100)).rows == 5
        batch = await changes.read(batch.position, 10)
        assert await changes.lag(batch.position, 100) == Lag(0, None)

    # ----- room

    @story
    async def test_what_all_readers_have_passed_is_dropped(self, bench: Bench) -> None:
        changes = bench.store.changes
        lease, position = await reading(bench)
        assert await changes.register("slow", NOW)
        await run(bench, insert("a", 1), insert("b", 1))
        batch = await changes.read(position, 10)
        assert await move(bench, lease, position, batch)
        await rotate(bench)
        assert await kept(bench) == ["a", "b"], "the slow reader has still to read them"
        assert await changes.forget("slow")
        assert not await changes.forget("slow")
        await rotate(bench)
        assert await kept(bench) == []
        await run(bench, insert("c", 1))
        await rotate(bench)
        assert keys(await changes.read(batch.position, 10)) == ["c"]

    @story
    async def test_numbers_go_on_when_all_is_dropped_but_the_rest_of_a_batch(self, bench: Bench) -> None:
        lease, position = await reading(bench)
        for title in "abc":
            await run(bench, insert(title, 1))
            batch = await bench.store.changes.read(position, 10)
            assert keys(batch) == [title]
            assert await move(bench, lease, position, batch)
            position = batch.position
            await rotate(bench)
        await run(bench, *(insert(title, 1) for title in "def"))
        assert await move(bench, lease, position, await bench.store.changes.read(position, 2))
        await rotate(bench)
        assert await rest(bench, READER, lease) == ["f"]

    @story
    async def test_how_much_room_the_feed_takes_and_how_long_a_transaction_is_open(self, bench: Bench) -> None:
        changes = bench.store.changes
        empty = await changes.size()
        await declare(bench, note("all", after=["title"]))
        await run(bench, *(insert(f"{number} {'x' * 500}", number) for number in range(100)))
        full = await changes.size()
        assert full - empty > 100 * 500
        await rotate(bench)
        assert (await changes.size(), await kept(bench)) == (empty, []), "what nobody reads is dropped"
        session = await bench.store.begin_write()
        try:
            await bench.insert(session, "a")
            found = await changes.oldest_transaction()
        finally:
            await session.rollback()
        assert found is None or timedelta(0) <= found < timedelta(minutes=1)


# ----- steps


async def reading(bench: Bench) -> tuple[int, Position]:
    await declare(bench, note("all"))
    assert await bench.store.changes.register(READER, NOW)
    lease = await bench.lease()
    position = await bench.store.changes.take(READER, lease)
    assert position is not None
    return lease, position


async def move(bench: Bench, lease: int, before: Position, batch: Batch) -> bool:
    work = partial(bench.store.changes.move, name=READER, lease=lease, before=before, after=batch.position)
    return await bench.writing(lambda session: work(session, now=after(1)))


async def rest(bench: Bench, name: str, lease: int) -> list[Any]:
    position = await bench.store.changes.take(name, lease)
    assert position is not None
    found: list[Any] = []
    while True:
        batch = await bench.store.changes.read(position, 2)
        found, position = found + keys(batch), batch.position
        if batch.complete:
            return found


async def rotate(bench: Bench) -> None:
    for hour in range(1, 9):
        await bench.store.changes.rotate(after(hour * 4000), 100)


async def kept(bench: Bench) -> list[Any]:
    return keys(await bench.store.changes.read(BEGINNING, 100))


def keys(batch: Batch) -> list[Any]:
    return [one.key_values()[0] for one in batch.changes]


class Declaring(Suite):
    """`store.nouns.Interests`: `check`, `declare`, `replace` and `keep_declared`."""

    @story
    async def test_what_is_checked_is_not_declared(self, bench: Bench) -> None:
        interests = [note("one"), note("two")]
        await bench.store.interests.check(interests, NOW)
        assert await bench.store.interests.list() == []
        await run(bench, insert("a", 1))
        numbers = await declare(bench, *interests)
        rows = await bench.store.interests.list()
        await bench.store.interests.check(interests, after(1))
        assert await bench.store.interests.list() == rows
        await run(bench, insert("b", 2))
        changes = (await bench.store.changes.read(BEGINNING, 9)).changes
        assert sorted(one.interest for one in changes) == numbers, "of the first row nothing was captured"

    @story
    async def test_each_replaces_those_of_its_name(self, bench: Bench) -> None:
        before = await declare(bench, note("one", each=True), note("two", each=True), note("three", each=True))
        both = [note(name, each=True, kinds=["enter"]) for name in ("one", "two")]
        numbers = await bench.store.interests.add(both, NOW)
        for _ in range(2):
            assert await bench.store.interests.replace(both, numbers, NOW) == frozenset()
            assert await numbered(bench) == {before[2]: "ok", **dict.fromkeys(numbers, "ok")}
        await run(bench, insert("a", 1), change("a", 2))
        changes = (await bench.store.changes.read(BEGINNING, 9)).changes
        assert [one.interest for one in changes if one.kind == "change"] == before[2:]

    @story
    async def test_what_somebody_else_has_replaced_does_not_come_back(self, bench: Bench) -> None:
        ours, theirs, beside = note("one"), note("one", kinds=["enter"]), note("two")
        (number, other) = await bench.store.interests.add([ours, beside], NOW)
        (their_number,) = await bench.store.interests.add([theirs], NOW)
        assert await bench.store.interests.replace([theirs], [their_number], NOW) == frozenset()
        assert await bench.store.interests.replace([ours, beside], [number, other], NOW) == {number}
        assert await numbered(bench) == {other: "ok", their_number: "ok"}
        (again,) = await bench.store.interests.add([ours], NOW)
        assert await bench.store.interests.replace([ours], [number], NOW) == {number}, "nobody reads it under another"
        assert await bench.store.interests.replace([ours], [again], NOW) == frozenset()
        assert await numbered(bench) == {other: "ok", again: "ok"}

    @story
    async def test_what_was_added_and_never_captured_is_dropped_alone(self, bench: Bench) -> None:
        (number,) = await declare(bench, note("one"))
        (other,) = await bench.store.interests.add([note("two")], NOW)
        await bench.store.interests.drop([number, other, other + 1], unused=True)
        assert await numbered(bench) == {number: "ok"}

    @story
    async def test_for_a_task_is_captured_what_it_is_declared_with_now(self, bench: Bench) -> None:
        ours, theirs = note("task:one"), note("task:one", kinds=["enter"])
        number, _theirs = await declare(bench, ours, theirs)
        await declared(bench, "one", ours)
        await bench.store.interests.keep_declared([theirs], NOW)
        assert await numbered(bench) == {number: "ok"}, "only what was given is dropped"
        await declare(bench, theirs)
        await bench.store.interests.keep_declared([ours], NOW)
        assert await numbered(bench) == {number: "ok"}
        await run(bench, insert("a", 1))
        assert await told(bench) == [("enter", "a")]

    @story
    async def test_what_a_task_is_declared_with_comes_back_with_a_word_of_the_gap(self, bench: Bench) -> None:
        one, two, three = (note(f"task:{name}") for name in ("one", "two", "three"))
        numbers = await declare(bench, one, two)
        for interest in (one, two):
            await declared(bench, interest.name.removeprefix("task:"), interest)
        await bench.store.interests.drop(numbers)
        (number,) = await declare(bench, one)
        await bench.store.interests.keep_declared([one, two], NOW)
        assert await told(bench, [number]) == [("lost", None)]
        (other,) = [found for found in await numbered(bench) if found != number]
        assert await told(bench, [other]) == [("lost", None)]
        assert await told(bench, await declare(bench, three)) == [], "it is new"

    @story
    async def test_what_cannot_be_captured_is_refused_at_the_door(self, bench: Bench) -> None:
        await bench.writing(plainly("create view viewed as select * from conformance_note"))
        refused = [
            note("no table", table="no_such_table"),
            note("no key", key=["nothing"]),
            note("no column", after=["id", "nothing"]),
            note("no column in its condition", matches='{row}."nothing" = 1'),
            note("no column in a watch", watches=['{row}."nothing"']),
            note("no function", matches='no_such_function({row}."id")'),
            note("no SQL", matches='{row}."id" ='),
            note("a view", table="viewed"),
        ]
        for interest in refused:
            for interests in ([interest], [note("all"), interest]):
                with pytest.raises(DeclarationError) as caught:
                    await bench.store.interests.check(interests, NOW)
                assert interest.name in str(caught.value)
            with pytest.raises(DeclarationError) as caught:
                await declare(bench, interest)
            assert interest.name in str(caught.value)
        assert await bench.store.interests.list() == [], "nothing is left of them"
        await run(bench, insert("a", 1), change("a", 2), delete("a"))


# ----- steps


async def numbered(bench: Bench) -> dict[int, str]:
    return {row.id: row.state for row in await bench.store.interests.list()}


async def declared(bench: Bench, name: str, interest: Interest) -> None:
    await task_of(bench, name=name, spec=replace(SPEC, interest=interest.digest))
