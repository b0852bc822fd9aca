from __future__ import annotations

from datetime import date

from penstock import QueryCtx, signed_in

from . import Order, app
from .tables import Product


@app.query(access=signed_in)
async def by_filter(ctx: QueryCtx, customer: str) -> list[Order]:
    return await ctx.db.query(Order).filter(lambda o: o.customer == customer).take(10)  # expect: PEN002


@app.query(access=signed_in)
async def range_by_filter(ctx: QueryCtx, customer: str, since: date) -> list[Order]:
    scan = ctx.db.query(Order).with_index(Order.by_customer_and_day, customer=customer)
    return await scan.filter(lambda o: o.day >= since).take(10)  # expect: PEN002


@app.query(access=signed_in)
async def in_python(ctx: QueryCtx, status: str) -> list[Order]:
    rows = await ctx.db.query(Order).collect()  # expect: PEN003
    return [one for one in rows if one.status == status]  # expect: PEN002


@app.query(access=signed_in)
async def how_many(ctx: QueryCtx, customer: str) -> int:
    rows = ctx.db.query(Order).with_index(Order.by_customer_and_day, customer=customer)
    return len(await rows.collect())  # expect: PEN003


@app.query(access=signed_in)
async def tagged(ctx: QueryCtx, tags: list[str]) -> list[Product]:
    return await ctx.db.query(Product).filter(lambda p: p.tags == tags).take(5)


class Books:
    def __init__(self, ctx: QueryCtx) -> None:
        self.db = ctx.db
        self.ctx = ctx

    async def everything(self) -> list[Order]:
        return await self.db.query(Order).collect()  # expect: PEN003

    async def newest(self) -> list[Order]:
        return await self.ctx.db.query(Order).order("desc").take(10)

    async def forgotten(self) -> None:
        self.ctx.db.query(Order).first()  # expect: PEN001
