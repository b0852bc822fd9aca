"""The steps of a query: which do not go together, and what they mean for writes, snapshots, limits and pages."""

from __future__ import annotations

import base64
import enum
import itertools
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import Field
from stage.stories import tell_in

from penstock import (
    App,
    ContextError,
    CursorInvalid,
    DeclarationError,
    Index,
    LimitExceeded,
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

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Visit(Table):
    customer: str
    place: str | None = None
    at: datetime = NOON
    price: Decimal = Decimal(0)
    status: Literal["open", "done"] = "open"
    tags: list[str] = Field(default_factory=list)

    by_customer = Index("customer", "place", "at")
    by_place = Index("place")
    by_status = Index("status", "price")
    by_time = Index("creation_time")
    by_id = Index("id", "place")


class Other(Table):
    customer: str

    by_customer = Index("customer")


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


class Sale(Table):
    shop: str | None = None
    day: date = date(2030, 1, 1)
    units: int = 0
    price: Decimal = Decimal(0)
    bonus: int | None = None
    size: Size = Size.SMALL
    truth: bool = False
    data: bytes = b""

    by_shop = Index("shop", "day", "size")
    by_units = Index("units")
    by_truth = Index("truth", "price")


app = OPENED = App(tables=[Visit, Other, Sale])
write, read, _ = tell_in(app)


async def fill(ctx: MutationCtx) -> None:
    """Every customer at every place at three times, in no order."""
    times = [NOON + HOUR, NOON, NOON - HOUR]
    for number, (place, customer, at) in enumerate(itertools.product(["b", None, "a"], ["Eve", "Ada"], times)):
        await ctx.db.insert(Visit(customer=customer, place=place, at=at, price=Decimal(number), tags=[str(number)]))


async def test_each_step_gives_a_new_query_and_leaves_the_old_one(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, fill)

        async def look(ctx: QueryCtx) -> None:
            visits = ctx.db.query(Visit)
            visits.with_index(Visit.by_customer, customer="Nobody")
            visits.filter(lambda _: False)
            visits.order("desc")
            by_creation = await visits.collect()
            assert [row.tags for row in by_creation] == [[str(number)] for number in range(18)]
            assert await visits.order("desc").order("asc").take(2) == by_creation[:2]
            by_time = await visits.with_index(Visit.by_time, creation_time=ctx.now()).collect()
            assert by_time == by_creation
            some = by_creation[5]
            assert await visits.with_index(Visit.by_id, id=some.id, place=some.place).unique() == some

        await backend.run_query(read, look)


async def test_what_an_index_cannot_say_is_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def look(ctx: QueryCtx) -> None:
            query: Any = ctx.db.query
            visits = query(Visit)
            wrong: list[dict[str, Any]] = [
                {"place": "a"},  # a column is left out
                {"customer": "a", "at": NOON},
                {"customer": gt("a"), "place": "b"},  # a range does not stand last
                {"customer": "a", "price": Decimal(1)},  # not a column of the index
                {"customer": Range()},  # a range without bounds
                {"customer": gt(None)},
                {"customer": 5},
                {"customer": "a\0"},
                {"customer": "a", "place": "a", "at": datetime(2030, 1, 1)},  # noqa: DTZ001 - what is tested
            ]
            for columns in wrong:
                with pytest.raises(ValueInvalid):
                    visits.with_index(Visit.by_customer, **columns)
            with pytest.raises(ValueInvalid, match="not an index of table Visit"):
                visits.with_index(Other.by_customer, customer="a")
            with pytest.raises(ValueInvalid):
                visits.with_index(Visit.by_status, status="unknown")
            with pytest.raises(ValueInvalid, match="asc or desc"):
                visits.order("down")
            for count in (-1, 1.5, None, True):
                with pytest.raises(ValueInvalid):
                    visits.take(count)
            with pytest.raises(ValueInvalid, match="at most one lower"):
                gt(1) & gte(2)
            for table in (Table, "visit"):
                with pytest.raises(DeclarationError, match="is not a table"):
                    query(table)

        await backend.run_query(read, look)


async def test_an_async_for_reads_on_and_may_stop_early(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, lambda ctx: ctx.db.insert_many([Other(customer=str(n)) for n in range(1000)]))

        async def look(ctx: QueryCtx) -> None:
            everyone = ctx.db.query(Other)
            assert [row.customer async for row in everyone] == [str(number) for number in range(1000)]
            seen = 0
            async for _ in everyone:
                seen += 1
                if seen == 70:
                    break
            assert ctx._scope.transaction._rows_read < 2500, "what is not asked for is not read"

        await backend.run_query(read, look)


async def test_rows_may_be_written_while_others_are_read(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(
            write, lambda ctx: ctx.db.insert_many([Other(customer=f"{n:03}") for n in range(200)])
        )

        async def story(ctx: MutationCtx) -> None:
            seen = []
            async for row in ctx.db.query(Other).with_index(Other.by_customer, customer=lt("200")):
                seen.append(row.customer)
                if int(row.customer) % 2:
                    await ctx.db.delete(Other, row.id)
                else:
                    await ctx.db.patch(Other, row.id, customer="9" + row.customer)
            assert seen == [f"{number:03}" for number in range(200)]
            left = await ctx.db.query(Other).with_index(Other.by_customer).collect()
            assert [row.customer for row in left] == [f"9{number:03}" for number in range(0, 200, 2)]

        await backend.run_mutation(write, story)


async def test_a_query_kept_beyond_its_function_gives_no_rows(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, fill)
        kept: list[Any] = []

        async def keep(ctx: QueryCtx) -> None:
            scan = ctx.db.query(Visit)
            kept.extend([ctx, scan, aiter(scan)])
            await anext(kept[2])

        await backend.run_query(read, keep)
        ctx, scan, rows = kept
        for call in (
            scan.collect, lambda: anext(aiter(scan)), lambda: ctx.db.get(Visit, "x"), lambda: ctx.sql("select 1"),
            lambda: ctx.run_query(read, keep), scan.with_index(Visit.by_customer).group_by("customer").count,
        ):  # fmt: skip
            with pytest.raises(ContextError, match="has ended"):
                await call()
        assert (await anext(rows)).tags == ["1"], "what was read before the end is there"


async def test_reading_too_much_is_refused_however_it_is_asked_for(database_url: str) -> None:
    async with TestApp(app, database_url, max_rows_read=17) as backend:
        await backend.run_mutation(write, fill)
        asked: list[Any] = [
            lambda ctx: ctx.db.query(Visit).take(18),
            lambda ctx: ctx.db.query(Visit).filter(lambda _: False).first(),
            lambda ctx: ctx.sql("select * from visit"),
        ]
        for ask in asked:
            with pytest.raises(LimitExceeded):
                await backend.run_query(read, ask)
        assert len(await backend.run_query(read, lambda ctx: ctx.db.query(Visit).take(17))) == 17
        page = await backend.run_query(read, lambda ctx: ctx.db.query(Visit).paginate(num_items=17))
        assert (len(page.page), page.is_done) == (16, False), "a page ends early"
        assert await backend.run_query(read, lambda ctx: ctx.db.query(Visit).count()) == 18


# ----- aggregates


async def test_groups_are_those_of_the_next_columns_of_the_index(database_url: str) -> None:
    monday, tuesday = date(2030, 1, 7), date(2030, 1, 8)
    rows = [
        Sale(shop=None, day=monday, units=1),
        Sale(shop="a", day=monday, units=2, size=Size.LARGE, price=Decimal("1.5")),
        Sale(shop="a", day=monday, units=3, price=Decimal(2)),
        Sale(shop="a", day=tuesday, units=4, bonus=1),
        *(Sale(shop="c", truth=True, price=Decimal(price)) for price in ("1.5", "1.50", "15E-1", "-0", "0.00")),
    ]
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, lambda ctx: ctx.db.insert_many(rows))

        async def look(ctx: QueryCtx) -> None:
            by_shop = ctx.db.query(Sale).with_index(Sale.by_shop)
            assert await by_shop.group_by("shop", "day").sum("units") == {
                (None, monday): 1, ("a", monday): 5, ("a", tuesday): 4, ("c", date(2030, 1, 1)): 0,
            }  # fmt: skip
            of_a = ctx.db.query(Sale).with_index(Sale.by_shop, shop="a")
            assert await of_a.group_by("day").min("bonus") == {monday: None, tuesday: 1}
            assert await of_a.group_by("day").sum("bonus") == {monday: 0, tuesday: 1}
            assert await of_a.group_by("day", "size").count() == {
                (monday, Size.SMALL): 1, (monday, Size.LARGE): 1, (tuesday, Size.SMALL): 1,
            }  # fmt: skip
            truths = ctx.db.query(Sale).with_index(Sale.by_truth, truth=True)
            assert await truths.group_by("price").count() == {Decimal(0): 2, Decimal("1.5"): 3}, "equal ones are one"

        await backend.run_query(read, look)


async def test_aggregates_that_mean_nothing_are_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def look(ctx: QueryCtx) -> None:
            sales = ctx.db.query(Sale).with_index(Sale.by_shop)
            for column in ("shop", "day", "id", "creation_time", "unknown", 'units"; drop table sale; --'):
                for what in (sales.sum, sales.group_by("shop").sum):
                    with pytest.raises(ValueInvalid):
                        await what(column)
            for what in (sales.min, sales.group_by("shop").max):
                with pytest.raises(ValueInvalid):
                    await what("data")
            for columns in ((), ("day",), ("shop", "size"), ("shop", "day", "units"), ("unknown",), ("day", "shop")):
                with pytest.raises(ValueInvalid, match="group_by"):
                    sales.group_by(*columns)

        await backend.run_query(read, look)


# ----- pages


class Booking(Table):
    customer: str
    seats: int | None = None

    by_customer = Index("customer", "seats")
    by_seats = Index("seats")


@app.query
async def bookings(ctx: QueryCtx, customer: str, cursor: str | None = None, size: int = 2) -> Page[Booking]:
    """A page as a public function gives it."""
    found = ctx.db.query(Booking).with_index(Booking.by_customer, customer=customer)
    return await found.paginate(cursor=cursor, num_items=size)


async def book(ctx: MutationCtx) -> None:
    for customer in ("Ada", "Eve"):
        for seats in (None, 1, 1, 2, None, 3):
            await ctx.db.insert(Booking(customer=customer, seats=seats))


async def test_the_last_page_ends_at_the_end_of_the_query(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        empty = await backend.run_query(bookings, "Ada")
        assert (empty.page, empty.is_done) == ([], True)
        await backend.run_mutation(write, book)
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


def unpack(cursor: str) -> list[Any]:
    found: list[Any] = json.loads(base64.urlsafe_b64decode(cursor + "=="))
    return found


def pack(content: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


async def test_a_cursor_of_another_query_or_of_none_is_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, book)

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
        await backend.run_mutation(write, book)

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
