from __future__ import annotations

from datetime import date
from typing import Annotated

from penstock import Id, QueryCtx, gte, signed_in
from penstock import PaginationOptions as Options

from . import Order, app
from . import tables as t
from .tables import Product, Review, Setting, Tenant


@app.query(access=signed_in)
async def by_filter(ctx: QueryCtx, customer: str) -> list[Order]:
    return await ctx.db.query(Order).filter(lambda o: o.customer == customer).take(10)  # expect: PEN002


@app.query(access=signed_in)
async def by_index(ctx: QueryCtx, customer: str) -> list[Order]:
    return await ctx.db.query(Order).with_index(Order.by_customer_and_day, customer=customer).take(10)


@app.query(access=signed_in)
async def by_range(ctx: QueryCtx, customer: str, since: date) -> list[Order]:
    scan = ctx.db.query(Order).with_index(Order.by_customer_and_day, customer=customer, day=gte(since))
    return await scan.order("desc").take(10)


@app.query(access=signed_in)
async def range_by_filter(ctx: QueryCtx, customer: str, since: date) -> list[Order]:
    scan = ctx.db.query(Order).with_index(Order.by_customer_and_day, customer=customer)
    return await scan.filter(lambda o: o.day >= since).take(10)  # expect: PEN002


@app.query(access=signed_in)
async def part_of_text(ctx: QueryCtx, word: str) -> list[Product]:
    return await ctx.db.query(Product).filter(lambda p: word in p.name).take(10)


@app.query(access=signed_in)
async def undeclared(ctx: QueryCtx, owner: str) -> Tenant | None:
    return await ctx.db.query(Tenant).filter(lambda one: one.owner == owner).first()  # expect: PEN002


@app.query(access=signed_in)
async def both(ctx: QueryCtx, owner: str, name: str) -> Tenant | None:
    scan = ctx.db.query(Tenant)
    return await scan.filter(lambda one: one.owner == owner and one.name == name).unique()  # expect: PEN002


@app.query(access=signed_in)
async def either(ctx: QueryCtx, name: str) -> list[Tenant]:
    return await ctx.db.query(Tenant).filter(lambda one: one.owner == name or one.name == name).take(5)


@app.query(access=signed_in)
async def in_pages(ctx: QueryCtx, customer: str, options: Options) -> list[Order]:
    found = await ctx.db.query(Order).filter(lambda o: o.customer == customer).paginate(options)
    return found.page


@app.query(access=signed_in)
async def in_python(ctx: QueryCtx, status: str) -> list[Order]:
    rows = await ctx.db.query(Order).collect()  # expect: PEN003
    return [one for one in rows if one.status == status]  # expect: PEN002


@app.query(access=signed_in)
async def in_python_few(ctx: QueryCtx, customer: str) -> list[Order]:
    rows = await ctx.db.query(Order).with_index(Order.by_customer_and_day, customer=customer).collect()
    return [one for one in rows if one.status == "open"]


@app.query(access=signed_in)
async def all_of_it(ctx: QueryCtx) -> list[Product]:
    return await ctx.db.query(t.Product).collect()  # expect: PEN003


@app.query(access=signed_in)
async def all_ordered(ctx: QueryCtx) -> list[Product]:
    return await ctx.db.query(Product).with_index(Product.by_price).order("desc").collect()  # expect: PEN003


@app.query(access=signed_in)
async def settings(ctx: QueryCtx) -> list[Setting]:
    return await ctx.db.query(Setting).collect()  # penstock: ignore[PEN003] a handful, which operators write


@app.query(access=signed_in)
async def how_many(ctx: QueryCtx, customer: str) -> int:
    rows = ctx.db.query(Order).with_index(Order.by_customer_and_day, customer=customer)
    return len(await rows.collect())  # expect: PEN003


@app.query(access=signed_in)
async def counted(ctx: QueryCtx, customer: str) -> int:
    return await ctx.db.query(Order).with_index(Order.by_customer_and_day, customer=customer).count()


@app.query(access=signed_in)
async def reviews(ctx: QueryCtx, product: Id[Product]) -> list[Review]:
    # in the order of their creation, which by_product_and_author does not have
    return await ctx.db.query(Review).with_index(Review.by_product, product=product).order("desc").take(20)


@app.query(access=signed_in)
async def one_by_one(ctx: QueryCtx) -> int:
    total = 0
    async for one in ctx.db.query(Order):
        total += len(one.customer)
    return total


@app.query(access=signed_in)
async def by_other_row(ctx: QueryCtx) -> list[Tenant]:
    return await ctx.db.query(Tenant).filter(lambda one: one.owner == one.name).take(5)


@app.query(access=signed_in)
async def tagged(ctx: QueryCtx, tags: list[str]) -> list[Product]:
    return await ctx.db.query(Product).filter(lambda p: p.tags == tags).take(5)


@app.query(access=signed_in)
async def not_equal(ctx: QueryCtx) -> list[Order]:
    return await ctx.db.query(Order).filter(lambda o: o.status != "open").take(5)


@app.query(access=signed_in)
async def annotated(ctx: QueryCtx, name: Annotated[str, "a name"]) -> Product | None:
    return await ctx.db.query(Product).with_index(Product.by_name, name=name).unique()


@app.query(access=signed_in)
async def without_table(ctx: QueryCtx, product: Id[Product]) -> Product | None:
    return await ctx.db.get(product)  # expect: PEN013


@app.query(access=signed_in)
async def with_table(ctx: QueryCtx, product: Id[Product]) -> Product | None:
    return await ctx.db.get(Product, product)


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


async def helper(ctx: QueryCtx) -> int:
    db = ctx.db
    orders = db.query(Order)
    return len(await orders.collect())  # expect: PEN003
