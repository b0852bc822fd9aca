"""What a store promises of interests that do not capture: they are mended, and their readers know of the gap."""

from __future__ import annotations

import pytest

from conformance.bench import Bench, Suite, story
from conformance.interests import (
    change,
    declare,
    insert,
    make_table,
    note,
    plainly,
    run,
    states,
    thing,
    told,
)
from penstock.errors import DeclarationError

EVENTS = ("insert", "update", "delete")


class Mending(Suite):
    """`store.nouns.Interests.mend`."""

    @story
    async def test_what_is_amiss_is_mended_as_it_was_declared(self, bench: Bench) -> None:
        number, other = await declare(bench, note("all"), note("other"))
        on = " on conformance_note" if bench.store.dialect.schemas else ""
        assert not await bench.store.interests.mend(number), "it is in order"
        dropped = (f"drop trigger _penstock_change_{number}_{event}{on}" for event in EVENTS)
        await bench.writing(plainly(*map(bench.store.dialect.qualify, dropped)))
        await run(bench, insert("a", 1))
        assert await states(bench) == ["missing", "missing"], "they share them"
        assert await bench.store.interests.mend(number)
        assert await states(bench) == ["ok", "ok"]
        assert not await bench.store.interests.mend(number)
        await run(bench, change("a", 2))
        assert await told(bench, [number]) == [("lost", None), ("change", "a")]
        assert await told(bench, [other]) == [("lost", None), ("change", "a")]
        await bench.store.interests.drop([number])
        assert not await bench.store.interests.mend(number), "nobody wants it any more"
        assert await states(bench) == ["ok"]

    @story
    async def test_what_does_not_fit_its_table_is_not_mended(self, bench: Bench) -> None:
        await make_table(bench, "thing", "a integer primary key, b integer")
        (number,) = await declare(bench, thing(after=["b"]))
        await bench.writing(plainly("alter table thing rename column b to c"))
        with pytest.raises(DeclarationError, match="no column b"):
            await bench.store.interests.mend(number)
        assert await states(bench) == ["altered"]
        await bench.writing(plainly("alter table thing rename column c to b"))
        await run(bench, "insert into thing values (1, 2)")
        assert await bench.store.interests.list() != []
        await bench.writing(plainly("drop table thing"))
        with pytest.raises(DeclarationError, match="there is no table"):
            await bench.store.interests.mend(number)
