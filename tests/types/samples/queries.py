"""The query builder: what each step takes, and what each last step gives."""

from typing import Any, assert_type

from samples.shop import Booking, Customer

from penstock import ActionCtx, App, Id, Page, QueryCtx, VectorHit, gte, sync

app = App()


@app.query
async def last_steps(ctx: QueryCtx, customer: Id[Customer]) -> list[Booking]:
    query = (
        ctx.db.query(Booking).with_index(Booking.by_customer, customer=customer, starts_at=gte(ctx.now())).order("desc")
    )
    assert_type(await query.collect(), list[Booking])
    assert_type(await query.take(5), list[Booking])
    assert_type(await query.paginate(cursor=None, num_items=10), Page[Booking])
    assert_type(await query.count(), int)
    assert_type(await query.group_by("starts_at").count(), dict[Any, int])
    assert_type(await query.filter(lambda booking: booking.seats > 1).collect(), list[Booking])
    async for booking in query:
        assert_type(booking, Booking)
    page = await query.paginate()
    assert_type(page.page, list[Booking])
    return await query.unique()  # refused: return-value


@app.query
async def searches(ctx: QueryCtx, customer: Id[Customer]) -> Booking | None:
    search = ctx.db.query(Booking).with_search_index(Booking.by_note, "late", match="all", customer=customer)
    assert_type(await search.take(5), list[Booking])
    assert_type(await search.filter(lambda booking: booking.seats > 1).collect(), list[Booking])
    assert_type(await search.paginate(num_items=10), Page[Booking])
    async for booking in search:
        assert_type(booking, Booking)
    search.order("desc")  # refused: attr-defined
    ctx.db.query(Booking).with_search_index(Booking.by_customer, "late")  # refused: arg-type
    ctx.db.query(Booking).with_search_index(Booking.by_note, "late", match="some")  # refused: arg-type
    return await search.first()


@app.action
async def nearest(ctx: ActionCtx, vector: list[float]) -> Id[Booking]:
    hits = await ctx.vector_search(Booking.by_look, vector, limit=5, customer=None)
    assert_type(hits, list[VectorHit[Booking]])
    await ctx.vector_search(Booking.by_note, vector)  # refused: arg-type
    ctx.vector_search(Booking.by_look, vector)  # refused: unused-coroutine
    row_id, score = hits[0]
    assert_type(score, float)
    return row_id


@app.query
async def wrong_steps(ctx: QueryCtx) -> list[Customer]:
    query = ctx.db.query(Booking)
    ctx.db.query(int)  # refused: type-var
    query.with_index("by_customer")  # refused: arg-type
    await query.take()  # refused: call-arg
    await query.paginate(10)  # refused: arg-type
    for _booking in query:  # refused: attr-defined
        pass
    query.collect()  # refused: unused-coroutine
    print((await query.first()).seats)  # refused: union-attr
    gte(1) & 2  # refused: operator
    return await query.collect()  # refused: return-value


@app.query
def in_a_thread(ctx: sync.QueryCtx, customer: Id[Customer]) -> list[Booking]:
    query = ctx.db.query(Booking).with_index(Booking.by_customer, customer=customer)
    assert_type(query.collect(), list[Booking])
    assert_type(query.paginate(), Page[Booking])
    for booking in query.order("desc"):
        assert_type(booking, Booking)
    query.filter(lambda booking: booking.seat > 1)  # refused: attr-defined
    return query.first()  # refused: return-value
