"""What a store promises of declaring interests: what is refused, what is checked beforehand, and what is replaced."""

from __future__ import annotations

import pytest

from penstock.changes.position import BEGINNING
from penstock.errors import DeclarationError
from penstock.testing.conformance.bench import NOW, Bench, Suite, after, story
from penstock.testing.conformance.interests import change, declare, delete, insert, note, plainly, run


class Declaring(Suite):
    """`store.changes.Interests.check` and `declare`."""

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
        numbers = await bench.store.interests.declare(both, NOW, replaces=before[:2])
        assert [(row.id, row.state) for row in await bench.store.interests.list()] == [
            (number, "ok") for number in (before[2], *numbers)
        ]
        await run(bench, insert("a", 1), change("a", 2))
        changes = (await bench.store.changes.read(BEGINNING, 9)).changes
        assert [one.interest for one in changes if one.kind == "change"] == before[2:]

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
