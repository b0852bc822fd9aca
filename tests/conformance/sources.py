"""What a store promises of how the rows of an interest are read: in which order, after a place, and in one snapshot."""

from __future__ import annotations

import json
from typing import Any

from conformance.bench import Bench, Suite, story
from conformance.interests import captured, change, declare, insert, note, run
from penstock.changes.position import BEGINNING
from penstock.store.nouns.interests import Source
from penstock.store.session import Session

ROWS = {"a": 5, "b": 1, "c": 3, "d": 1, "e": 3}
COLUMNS = ("id", "amount")
IN_ORDER = ["b", "d", "c", "e", "a"]


class Sources(Suite):
    """`store.changes.Source`, and `store.nouns.Changes.read` with a session."""

    @story
    async def test_rows_are_read_in_the_order_of_columns_and_then_of_their_keys(self, bench: Bench) -> None:
        source = await ordered(bench)
        for size in (1, 2, 5, 6):
            found = list[str]()
            place: Any = None
            while rows := await page(bench, source, place, size):
                found += [json.loads(row[0])[0] for row in rows]
                place = rows[-1][3]
            assert found == IN_ORDER, size
        (number,) = await declare(bench, note("by keys", before=COLUMNS, after=COLUMNS, order=()))
        source = await source_of(bench, number)
        rows = await page(bench, source, None, 9)
        assert [json.loads(row[0])[0] for row in rows] == sorted(ROWS)
        assert [row[3] for row in rows] == [row[0] for row in rows], "the place is the key"
        assert [row[0] for row in await page(bench, source, rows[2][0], 9)] == [row[0] for row in rows[3:]]

    @story
    async def test_captured_rows_are_compared_with_places_as_stored_rows_are(self, bench: Bench) -> None:
        source = await ordered(bench)
        places = [row[3] for row in await page(bench, source, None, 9)]
        await run(bench, *(change(title, 9) for title in IN_ORDER))
        before = [one.before for one in await captured(bench) if one.kind == "change"]
        rows = f"[{','.join(before)}]"
        for number, place in enumerate(places):
            passed = await bench.reading(lambda session, at=place: session.fetch(source.passed, [rows, at]))  # type: ignore[misc]  # mypy knows no defaults of lambdas
            assert sorted(row[0] for row in passed) == list(range(number + 1))

    @story
    async def test_what_is_read_in_a_session_is_what_that_sees(self, bench: Bench) -> None:
        source = await ordered(bench)

        async def look(session: Session) -> tuple[int, list[str]]:
            before = (await bench.store.changes.read(BEGINNING, 99, None, session)).changes
            await run(bench, insert("f", 2), change("a", 0))
            batch = await bench.store.changes.read(BEGINNING, 99, None, session)
            assert (batch.changes, batch.complete) == (before, True)
            rows = await session.fetch(source.first, [9])
            assert (await bench.store.changes.read(batch.position, 99)).changes[0].kind == "enter", (
                "what comes is not lost"
            )
            return len(before), [json.loads(row[0])[0] for row in rows]

        assert await bench.reading(look) == (len(ROWS), IN_ORDER)


async def ordered(bench: Bench) -> Source:
    """Some rows, and how they are read in the order of a column."""
    (number,) = await declare(bench, note("ordered", before=COLUMNS, after=COLUMNS, order=("amount",)))
    await run(bench, *(insert(title, amount) for title, amount in ROWS.items()))
    return await source_of(bench, number)


async def source_of(bench: Bench, number: int) -> Source:
    """How the rows of an interest are read."""
    source = await bench.store.interests.source(number)
    assert source is not None
    return source


async def page(bench: Bench, source: Source, place: str | None, size: int) -> list[Any]:
    """Some rows, after a place."""
    if place is None:
        return list(await bench.reading(lambda session: session.fetch(source.first, [size])))
    return list(await bench.reading(lambda session: session.fetch(source.following, [place, size])))
