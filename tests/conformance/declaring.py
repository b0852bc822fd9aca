"""What a store promises of declaring interests: what is refused, what is checked beforehand, and what is replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.bench import NOW, Bench, Suite, after, story
from conformance.interests import change, declare, delete, insert, note, plainly, run, told
from conformance.taskbench import SPEC, task_of
from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.errors import DeclarationError


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
    """How interests stand, by their numbers."""
    return {row.id: row.state for row in await bench.store.interests.list()}


async def declared(bench: Bench, name: str, interest: Interest) -> None:
    """Have a task declared with an interest."""
    await task_of(bench, name=name, spec=replace(SPEC, interest=interest.digest))
