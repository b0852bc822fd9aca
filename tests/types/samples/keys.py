"""Tables of other programs: ids of rows, whose keys have one column or several."""

from typing import Any, assert_type

from penstock import App, Id, MutationCtx, QueryCtx, Table, TaskCtx, UserTable

app = App()


class Product(Table, source="product", key="sku", managed=False):
    sku: str


class Order(Table, source="orders", key=("tenant", "number"), managed=False):
    tenant: int
    number: str
    amount: int = 0


@app.query
async def read(ctx: QueryCtx, order: Id[Order], product: Id[Product]) -> Order | None:
    assert_type(await ctx.db.get(Order, (7, "a")), Order | None)
    assert_type(await ctx.db.get(Order, order), Order | None)
    await ctx.db.get(Order, [7, "a"])  # refused: arg-type
    await ctx.db.get(Order, product)  # refused: misc
    return await ctx.db.get(Order, order)


@app.mutation
async def write(ctx: MutationCtx, tenant: int, number: str) -> Id[Order]:
    row_id = await ctx.db.insert(Order(tenant=tenant, number=number))
    assert_type(row_id, Id[Order])
    assert_type(await ctx.db.patch(Order, row_id, amount=1), Order)
    assert_type(await ctx.db.patch(Order, (tenant, number), amount=1), Order)
    return row_id


@app.reactive_task(Order)
async def act(ctx: TaskCtx[Order]) -> None:
    assert_type(ctx.doc_id, Any)
    tenant, number = ctx.doc_id
    print(tenant, number)


class Invoice(UserTable, source="shop_invoice", key="id", managed=False):
    id: int
    total: int


@app.query
async def with_a_field_called_id(ctx: QueryCtx, invoice: Id[Invoice]) -> int:
    row = await ctx.db.get(Invoice, invoice)
    assert row is not None
    assert_type(row.id, int)
    Invoice(total=5)  # refused: call-arg
    return Invoice(id=1, total=5).id
