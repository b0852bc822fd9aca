"""Counts, sums and extremes: exact, alike on both stores, and refused where they mean nothing."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Literal
from uuid import UUID

import pytest
from pydantic import Field
from stage.stories import tell_in

from penstock import App, Index, QueryCtx, Table, ValueInvalid, gte, lt
from penstock.testing import TestApp

INT64 = 2**63


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


class Sale(Table):
    shop: str | None = None
    day: date = date(2030, 1, 1)
    units: int = 0
    weight: float = 0.0
    price: Decimal = Decimal(0)
    wait: timedelta = timedelta(0)
    at: datetime = datetime(2030, 1, 1, tzinfo=UTC)
    bonus: int | None = None
    size: Size = Size.SMALL
    status: Literal["open", "paid"] = "open"
    truth: bool = False
    data: bytes = b""
    uuid: UUID = UUID(int=0)
    tags: list[str] = Field(default_factory=list)

    by_shop = Index("shop", "day", "size")
    by_units = Index("units")
    by_truth = Index("truth", "price")


app = OPENED = App(tables=[Sale])
write, read, _ = tell_in(app)


async def test_sums_are_exact_and_may_be_larger_than_what_is_summed(database_url: str) -> None:
    prices = [Decimal(10) ** 40, Decimal("0.0000000001"), Decimal("1E-40"), -(Decimal(10) ** 40), Decimal("0.1")]
    long = timedelta(days=100_000_000)
    async with TestApp(app, database_url) as backend:
        rows = [Sale(units=INT64 - 1, wait=long, price=price) for price in prices]
        await backend.run_mutation(write, lambda ctx: ctx.db.insert_many(rows))

        async def sums(ctx: QueryCtx) -> list[object]:
            return [await ctx.db.query(Sale).sum(column) for column in ("price", "units", "wait")]

        total = Decimal("0.1000000001000000000000000000000000000001")
        assert await backend.run_query(read, sums) == [total, 5 * (INT64 - 1), 5 * long]


async def test_groups_are_those_of_the_next_columns_of_the_index(database_url: str) -> None:
    monday, tuesday = date(2030, 1, 7), date(2030, 1, 8)
    rows = [
        Sale(shop=None, day=monday, units=1),
        Sale(shop="a", day=monday, units=2, size=Size.LARGE, price=Decimal("1.5")),
        Sale(shop="a", day=monday, units=3, price=Decimal(2)),
        Sale(shop="a", day=tuesday, units=4, bonus=1),
        Sale(shop="b", day=tuesday, units=5),
        *(Sale(shop="c", truth=True, price=Decimal(price)) for price in ("1.5", "1.50", "15E-1", "-0", "0.00")),
    ]
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, lambda ctx: ctx.db.insert_many(rows))

        async def look(ctx: QueryCtx) -> None:
            by_shop = ctx.db.query(Sale).with_index(Sale.by_shop)
            assert await by_shop.group_by("shop").count() == {None: 1, "a": 3, "b": 1, "c": 5}
            assert list(await by_shop.group_by("shop").count()) in ([None, "a", "b", "c"], ["a", "b", "c", None])
            assert await by_shop.group_by("shop", "day").sum("units") == {
                (None, monday): 1, ("a", monday): 5, ("a", tuesday): 4, ("b", tuesday): 5, ("c", date(2030, 1, 1)): 0,
            }  # fmt: skip
            of_a = ctx.db.query(Sale).with_index(Sale.by_shop, shop="a")
            assert await of_a.group_by("day").max("price") == {monday: Decimal(2), tuesday: Decimal(0)}
            assert await of_a.group_by("day").min("bonus") == {monday: None, tuesday: 1}
            assert await of_a.group_by("day").sum("bonus") == {monday: 0, tuesday: 1}
            assert await of_a.group_by("day", "size").count() == {
                (monday, Size.SMALL): 1, (monday, Size.LARGE): 1, (tuesday, Size.SMALL): 1,
            }  # fmt: skip
            later = ctx.db.query(Sale).with_index(Sale.by_shop, shop="a", day=gte(tuesday))
            assert await later.group_by("day").count() == {tuesday: 1}
            truths = ctx.db.query(Sale).with_index(Sale.by_truth)
            assert await truths.group_by("truth").sum("units") == {False: 15, True: 0}
            assert await truths.group_by("truth", "price").count() == {
                (False, Decimal(0)): 3, (False, Decimal("1.5")): 1, (False, Decimal(2)): 1,
                (True, Decimal(0)): 2, (True, Decimal("1.5")): 3,
            }  # fmt: skip
            same = ctx.db.query(Sale).with_index(Sale.by_truth, truth=True, price=Decimal("1.500"))
            assert await same.count() == 3, "equal decimals are one"

        await backend.run_query(read, look)


async def test_aggregates_that_mean_nothing_are_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def look(ctx: QueryCtx) -> None:
            sales = ctx.db.query(Sale).with_index(Sale.by_shop)
            for column in ("shop", "day", "at", "truth", "data", "uuid", "tags", "id", "creation_time", "unknown", ""):
                with pytest.raises(ValueInvalid):
                    await sales.sum(column)
                with pytest.raises(ValueInvalid):
                    await sales.group_by("shop").sum(column)
            for column in ("truth", "data", "uuid", "tags", "unknown", 'units"; drop table sale; --'):
                for what in (sales.min, sales.max, sales.group_by("shop").min, sales.group_by("shop").max):
                    with pytest.raises(ValueInvalid):
                        await what(column)
            for columns in ((), ("day",), ("shop", "size"), ("shop", "day", "units"), ("unknown",), ("day", "shop")):
                with pytest.raises(ValueInvalid, match="group_by"):
                    sales.group_by(*columns)
            with pytest.raises(ValueInvalid, match="group_by"):
                ctx.db.query(Sale).group_by("shop")
            with pytest.raises(ValueInvalid, match="group_by"):
                ctx.db.query(Sale).with_index(Sale.by_shop, shop="a").group_by("shop")

        await backend.run_query(read, look)


async def test_what_an_aggregate_looked_at_counts_as_read(database_url: str) -> None:
    async with TestApp(app, database_url, max_rows_read=1) as backend:
        await backend.run_mutation(write, lambda ctx: ctx.db.insert_many([Sale(units=number) for number in range(9)]))

        async def look(ctx: QueryCtx) -> None:
            assert await ctx.db.query(Sale).with_index(Sale.by_units, units=lt(5)).count() == 5
            assert await ctx.db.query(Sale).with_index(Sale.by_units, units=7).sum("units") == 7
            reads = ctx._scope.transaction.read_set.ranges
            assert [(read.index, read.prefix, read.lower, read.upper and read.upper.value) for read in reads] == [
                ("by_units", (), None, 5),
                ("by_units", (7,), None, None),
            ]

        await backend.run_query(read, look)
