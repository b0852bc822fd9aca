"""Pages: the last one ends where its query does, and no cursor leads out of its query."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from stage.stories import tell_in

from penstock import (
    App,
    CursorInvalid,
    Index,
    MutationCtx,
    Page,
    QueryCtx,
    Range,
    Table,
    ValueInvalid,
    between,
    gt,
    gte,
    lt,
)
from penstock.testing import TestApp


class Booking(Table):
    customer: str
    seats: int | None = None

    by_customer = Index("customer", "seats")
    by_seats = Index("seats")


class Other(Table, name="other_than_bookings"):
    customer: str


app = OPENED = App()
write, read, _ = tell_in(app)


@app.query
async def bookings(ctx: QueryCtx, customer: str, cursor: str | None = None, size: int = 2) -> Page[Booking]:
    """A page as a public function gives it."""
    found = ctx.db.query(Booking).with_index(Booking.by_customer, customer=customer)
    return await found.paginate(cursor=cursor, num_items=size)


async def fill(ctx: MutationCtx) -> None:
    for customer in ("Ada", "Eve"):
        for seats in (None, 1, 1, 2, None, 3):
            await ctx.db.insert(Booking(customer=customer, seats=seats))


# ----- all pages together


async def test_the_last_page_ends_at_the_end_of_the_query(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        empty = await backend.run_query(bookings, "Ada")
        assert (empty.page, empty.is_done) == ([], True)
        await backend.run_mutation(write, fill)
        after_all = await backend.run_query(bookings, "Ada", empty.continue_cursor, 100)
        assert (after_all.page, after_all.is_done) == ([], True), "nothing follows the end"
        assert after_all.continue_cursor == empty.continue_cursor
        exact = await backend.run_query(bookings, "Ada", None, 6)
        assert exact.is_done, "it is known at once that no row follows"
        assert exact.continue_cursor == empty.continue_cursor
        five = await backend.run_query(bookings, "Ada", None, 5)
        await backend.run_mutation(write, lambda ctx: ctx.db.insert(Booking(customer="Ada", seats=9)))
        late = await backend.run_query(bookings, "Ada", five.continue_cursor)
        assert [row.seats for row in late.page] == [3, 9]
        sizes: list[Any] = [0, 10_001, 1.5, None, True]
        for size in sizes:
            with pytest.raises(ValueInvalid):
                await backend.run_query(read, lambda ctx, size=size: ctx.db.query(Booking).paginate(num_items=size))


# ----- cursors


def unpack(cursor: str) -> list[Any]:
    found: list[Any] = json.loads(base64.urlsafe_b64decode(cursor + "=="))
    return found


def pack(content: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


async def test_a_cursor_of_another_query_or_of_none_is_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, fill)

        async def look(ctx: QueryCtx) -> None:
            query = ctx.db.query(Booking).with_index(Booking.by_customer, customer="Ada", seats=gte(1))
            cursor = (await query.paginate(num_items=1)).continue_cursor
            mark, values = unpack(cursor)
            others: list[Any] = [
                ctx.db.query(Booking),
                ctx.db.query(Other),
                ctx.db.query(Booking).with_index(Booking.by_seats),
                ctx.db.query(Booking).with_index(Booking.by_customer, customer="Eve", seats=gte(1)),
                ctx.db.query(Booking).with_index(Booking.by_customer, customer="Ada", seats=gt(1)),
                query.order("desc"),
            ]
            for other in others:
                with pytest.raises(CursorInvalid):
                    await other.paginate(cursor=cursor)
            garbage = [
                "", "ä", "\0", "a" * 100_000, cursor[:-1], cursor + "A", "!" + cursor, pack(None), pack([mark]),
                pack({}), pack([mark, {}]), pack([mark, []]), pack([mark, values[:-1]]), pack([mark, [*values, 1]]),
                pack([mark, values, 1]), pack([mark, ["Ada", 1.5, values[2]]]), pack([mark, ["Ada", 2**63, values[2]]]),
                pack([mark, ["Ada", True, values[2]]]), pack([mark, ["Ada", 1, 5]]), pack([mark, ["Ada", 1, "\0"]]),
                pack([mark, ["Ada", 1, "\ud800"]]), pack(["0" * 12, values]), pack([[mark], values]),
            ]  # fmt: skip
            for text in garbage:
                with pytest.raises(CursorInvalid):
                    await query.paginate(cursor=text)
            assert len((await query.paginate(cursor=cursor)).page) == 3

        await backend.run_query(read, look)


@pytest.mark.parametrize("direction", ["asc", "desc"])
async def test_a_forged_cursor_does_not_leave_its_range(database_url: str, direction: Any) -> None:
    ranges: list[tuple[Range | int | None, list[int | None]]] = [
        (gte(1) & lt(3), [1, 1, 2]),
        (gt(1), [2, 3]),
        (between(2, 2), [2]),
        (None, [None, None]),
    ]
    forged = [None, -(2**63), 1, 3, 2**63 - 1]
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, fill)

        async def look(ctx: QueryCtx) -> None:
            for seats, allowed in ranges:
                query = (
                    ctx.db.query(Booking).with_index(Booking.by_customer, customer="Ada", seats=seats).order(direction)
                )
                inside = {row.id for row in await query.collect()}
                assert len(inside) == len(allowed)
                mark = unpack((await query.paginate(num_items=1)).continue_cursor)[0]
                for customer in ("", "Ada", "Eve"):
                    for value in forged:
                        for row_id in ("", "z"):
                            cursor: str | None = pack([mark, [customer, value, row_id]])
                            while cursor is not None:
                                page = await query.paginate(cursor=cursor, num_items=1)
                                assert {row.id for row in page.page} <= inside
                                cursor = None if page.is_done else page.continue_cursor

        await backend.run_query(read, look)
