"""Outboxes: where they begin, rows that are older, and what is declared anew. Nothing is missed or doubled."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from stage.items import FILTERS, POLICIES, TEN, Item, handed, pieces, rows_before, several, staged
from stage.outboxes import OutboxStage, drain, outbox_row, run_sql, sql, states, text_of

MANY = 800


async def test_it_begins_with_the_rows_that_there_are_or_with_what_comes(database_url: str) -> None:
    await rows_before(database_url, Item(note="a"), Item(note="b"))
    stage = several({start: {"start": start} for start in ("beginning", "end")})
    async with stage.open(database_url) as test:
        await stage.insert(test, Item(note="c"))
        await drain(test)
        assert await handed(stage, test) == {"beginning": ["a", "b", "c"], "end": ["c"]}
        assert {text_of(one): one.older for one in stage.got} == {"a": True, "b": True, "c": False}
        numbers = [one.number for one in stage.got if one.outbox == "beginning"]
        assert numbers == sorted(set(numbers))
        assert (await outbox_row(test, "beginning")).backfill is None
    async with stage.open(database_url, clock=test.clock) as test:
        stage.got.clear()
        await drain(test)
        assert stage.texts() == [], "and once"


@pytest.mark.parametrize("mutation", [False, True])
async def test_many_older_rows_come_in_the_order_of_their_keys_and_what_is_written_meanwhile_after(
    database_url: str, *, mutation: bool
) -> None:
    ids = await rows_before(database_url, *[Item(note=f"{number:04}") for number in range(MANY)])
    order = {str(one): number for number, one in enumerate(sorted(map(str, ids)))}
    stage = staged(on=("insert", "update", "delete"), mutation=mutation)
    async with stage.open(database_url) as test:
        for turn in range(8):
            await pieces(test)
            await stage.insert(test, Item(note=f"new {turn}"))
            await stage.patch(test, Item, ids[turn * 95], note=f"{turn * 95:04}+")
            await stage.delete(test, Item, ids[turn * 95 + 1])
        await drain(test)
        texts = await stage.written(test) if mutation else [text_of(one) for one in stage.got]
        assert len(texts) == len(set(texts)), [text for text, count in Counter(texts).items() if count > 1]
        first = texts[: next(at for at, text in enumerate(texts) if " " in text)]
        numbers = [int(text.removesuffix("+")) for text in first]
        assert numbers == sorted(numbers, key=lambda one: order[str(ids[one])]), "in the order of their keys"
        gone = {turn * 95 + 1 for turn in range(8)}
        assert set(range(MANY)) - gone <= set(numbers)
        later = texts[len(first) :]
        assert [text for text in later if text.startswith("new")] == [f"new {turn}" for turn in range(8)]
        assert [text for text in later if text.startswith("update")] == [f"update {turn * 95:04}+" for turn in range(8)]
        assert [text for text in later if text.startswith("delete")] == [
            f"delete {turn * 95 + 1:04}" for turn in range(8)
        ]


@pytest.mark.parametrize("how", FILTERS)
async def test_rows_that_enter_while_older_ones_are_read_come_once(database_url: str, how: str) -> None:
    ids = await rows_before(database_url, *[Item(note=f"n{number}", value=0) for number in range(10)])
    ids += await rows_before(database_url, *[Item(note=f"y{number}", value=1) for number in range(10, 250)])
    stage = staged(filter=FILTERS[how], mutation=True)
    async with stage.open(database_url) as test:
        await stage.patch(test, Item, ids[0], note="y0", value=1)
        await stage.patch(test, Item, ids[249], lane="b")
        await pieces(test)
        await stage.patch(test, Item, ids[1], note="y1", value=1)
        await stage.patch(test, Item, ids[240], lane="b")
        await stage.patch(test, Item, ids[245], note="n", value=0)
        await stage.patch(test, Item, ids[245], note="y245", value=1)
        await drain(test)
        expected = Counter({f"y{number}": 1 for number in [0, 1, *range(10, 250)]})
        assert Counter(await stage.written(test)) == expected


async def test_an_older_row_that_fails_keeps_count_of_its_attempts_while_others_are_written(database_url: str) -> None:
    await rows_before(database_url, *[Item(note=text) for text in "abc"])
    stage = several({policy: {"on_failure": policy} for policy in POLICIES}, "b")
    async with stage.open(database_url) as test:
        for number in range(3):
            await drain(test, TEN)
            await stage.insert(test, Item(note=f"new {number}"))
        await drain(test, timedelta(seconds=1))
        row = await outbox_row(test, "halt")
        rest = ["a", "c", "new 0", "new 1", "new 2"]
        assert await handed(stage, test) == {"halt": ["a"], "halt_key": rest, "park": rest}
        assert row.trouble is not None
        assert row.trouble.halted
        assert (await states(test, "halt_key"), await states(test, "park")) == (["halted"], ["parked"])
        stage.fails = lambda _message: None
        for policy in POLICIES:
            await test.engine.store.outboxes.retry(policy, test.clock.now())
        await drain(test, timedelta(seconds=2))
        got = await handed(stage, test)
        assert got == {"halt": ["a", "b", *rest[1:]], "halt_key": [*rest, "b"], "park": [*rest, "b"]}


async def test_it_goes_on_where_it_was_in_the_middle_of_older_rows(database_url: str) -> None:
    await rows_before(database_url, *[Item(note=f"{number:03}") for number in range(350)])
    stage = staged()
    async with stage.open(database_url) as test:
        await pieces(test, 2)
        assert 0 < len(stage.got) < 350
    async with stage.open(database_url, clock=test.clock) as test:
        await drain(test)
    assert sorted(stage.texts()) == [f"{number:03}" for number in range(350)]


# ----- declared anew


async def test_another_filter_takes_over_and_nothing_is_missed_or_doubled(database_url: str) -> None:
    made, number, settings = list[OutboxStage](), 0, dict[str, Any]()
    for how in ("exact", "wide", "exact"):
        stage = staged(filter=FILTERS[how], start="end")
        made.append(stage)
        async with stage.open(database_url, **settings) as test:
            settings = {"clock": test.clock}
            if number:
                await pieces(test)
            for _ in range(3):
                number += 1
                await stage.insert(test, Item(note=f"y{number}", value=number))
            await run_sql(database_url, "update item set lane = 'b'")
    async with made[-1].open(database_url, **settings) as test:
        await drain(test)
    got = [text for stage in made for text in stage.texts()]
    assert got == [f"y{one}" for one in range(1, number + 1)]


async def test_rows_written_around_the_moment_of_taking_over_come_once(database_url: str) -> None:
    first, second = staged(start="end"), staged(start="end", fields=("note",))
    async with first.open(database_url) as old:
        await drain(old)
        await first.insert(old, Item(note="1"))
        await drain(old)
        async with second.open(database_url, clock=old.clock) as new:
            await first.insert(old, Item(note="2"))
            await drain(old)
            await first.insert(old, Item(note="3"))
            await drain(old, timedelta(seconds=2))
            await second.insert(new, Item(note="4"))
            await drain(old, timedelta(seconds=2))
            await first.insert(old, Item(note="5"))
            await drain(new, timedelta(seconds=2))
            assert first.texts() == ["1"], "what is declared anew is no business of who declares it as it was"
            assert second.texts() == ["2", "3", "4", "5"]
            assert len(await sql(new, "select * from item")) == 5


async def test_an_older_version_changes_nothing_of_a_newer_one(database_url: str) -> None:
    old, new = staged(version=1), staged(version=2, filter=lambda row: row.value > 0)
    async with new.open(database_url) as newer:
        await drain(newer)
        before = await outbox_row(newer)
        async with old.open(database_url, clock=newer.clock) as older:
            row = await outbox_row(older)
            assert (row.plan, row.interests) == (before.plan, before.interests)
            await new.insert(newer, Item(note="no"), Item(note="yes", value=1))
            await drain(older)
            await drain(newer)
            assert (new.texts(), old.texts()) == (["yes"], [])
