"""A parking garage: gates, tickets and monthly customers, all in one file."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import uuid
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import psycopg
import structlog
from pydantic import BaseModel, ConfigDict, TypeAdapter

from penstock import (
    ActionCtx,
    App,
    ApplicationError,
    Id,
    Index,
    MutationCtx,
    MutationTaskCtx,
    QueryCtx,
    Retry,
    Rules,
    Table,
    WorkId,
    WorkResult,
    gt,
    owner_of,
    public,
    signed_in,
    sync,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

app = App(name="garage")
log = structlog.get_logger()
audit = logging.getLogger("audit")
HOURLY: Final = Decimal("2.50")
STRICT = Retry.linear(30, max_attempts=5)
gates = app.workpool("gates", max_parallelism=1, default_retry=STRICT)  # expect: PEN018
receipts = app.workpool("receipts", default_retry=STRICT)
signs = app.workpool("signs", max_parallelism=1, default_retry=Retry.linear(1, max_attempts=5))


class Ticket(Table):
    plate: str
    floor: int
    entered_at: datetime
    left_at: datetime | None = None
    cents: int = 0

    by_plate = Index("plate", "left_at")
    by_floor = Index("floor", "left_at")


class Customer(Table):
    email: str
    plate: str
    iban: str = ""
    until: datetime | None = None
    rules = Rules(read=lambda row, identity: row.email == identity.email)

    by_plate = Index("plate", unique=True)
    by_email = Index("email")


class Gate(Table):
    name: Literal["north", "south"]
    is_open: bool = False


@dataclass(frozen=True)
class Fee:
    cents: int
    hours: int


class Leaving(BaseModel):
    model_config = ConfigDict(extra="forbid")
    plate: str
    paid: int


def fee(entered: datetime, left: datetime) -> Fee:
    hours = max(1, round((left - entered) / timedelta(hours=1)))
    return Fee(int(HOURLY * hours * 100), hours)


async def inside(ctx: QueryCtx, plate: str) -> Ticket | None:
    return await ctx.db.query(Ticket).with_index(Ticket.by_plate, plate=plate, left_at=None).first()


async def newest_tickets(ctx: QueryCtx, floor: int, n: int = 10) -> list[Ticket]:
    rows = await ctx.db.query(Ticket).with_index(Ticket.by_floor, floor=floor).order("desc").take(n)
    return sorted(rows, key=attrgetter("entered_at"))


@asynccontextmanager
async def closed_gate(ctx: MutationCtx, gate: Id[Gate]) -> AsyncIterator[Gate]:
    yield await ctx.db.patch(Gate, gate, is_open=False)
    await ctx.db.patch(Gate, gate, is_open=True)


async def staff(ctx: QueryCtx) -> bool:
    user = await ctx.auth.get_user_identity()
    return user is not None and (user.email or "").endswith("@garage.example")


@app.query(access=public)
async def price(ctx: QueryCtx, plate: str) -> int:
    ticket = await inside(ctx, plate)
    return fee(ticket.entered_at, ctx.now()).cents if ticket else 0


@app.query(access=public)
async def price_badly(ctx: QueryCtx, plate: str) -> int:
    ticket = await inside(ctx, plate)
    return fee(ticket.entered_at, datetime.utcnow()).cents if ticket else 0  # expect: PEN014


@app.query(access=public)
async def gate_list(ctx: QueryCtx) -> list[Gate]:
    return await ctx.db.query(Gate).collect()  # penstock: ignore[PEN003] there are two gates


@app.query(access=public)
async def gate_names(ctx: QueryCtx) -> list[str]:
    return [one.name for one in await ctx.db.query(Gate).collect()]  # expect: PEN000, PEN003  # penstock: ignore[PEN003]


@app.query(access=public)
async def open_gates(ctx: QueryCtx) -> int:
    return len(await ctx.db.query(Gate).take(2))  # expect: PEN000  # penstock: ignore[PEN003] two gates


@app.query(access=staff)
async def floors(ctx: QueryCtx) -> dict[int, int]:
    counted = Counter([one.floor async for one in ctx.db.query(Ticket)])  # expect: PEN003
    return dict(counted)


@app.query(access=staff)
async def floors_counted(ctx: QueryCtx) -> dict[int, int]:
    return await ctx.db.query(Ticket).with_index(Ticket.by_floor).group_by("floor").count()


@app.query(access=staff)
async def expensive(ctx: QueryCtx, cents: int) -> Ticket | None:
    rows = ctx.db.query(Ticket)
    return await rows.filter(lambda ticket: ticket.cents > cents).first()  # expect: PEN002


@app.query(access=staff)
async def parked_since(ctx: QueryCtx, floor: int, since: datetime) -> list[Ticket]:
    left = gt(since)
    return await ctx.db.query(Ticket).with_index(Ticket.by_floor, floor=floor, left_at=left).collect()


@app.query(access=staff)
async def all_plates(ctx: QueryCtx) -> set[str]:
    plates = set()
    async for ticket in ctx.db.query(Ticket).order("desc"):
        plates.add(ticket.plate)
        if len(plates) > 50:
            break
    return plates


@app.query(access=staff)
async def look_up(ctx: QueryCtx, plate: str) -> dict:  # expect: PEN005
    return asdict(fee((await inside(ctx, plate)).entered_at, ctx.now()))


@app.query(access=staff)
async def look_up_fee(ctx: QueryCtx, plate: str) -> Fee:
    return fee((await inside(ctx, plate)).entered_at, ctx.now())


@app.query(access=signed_in)
async def me(ctx: QueryCtx, email: str) -> Customer:
    found = await ctx.db.query(Customer).with_index(Customer.by_email, email=email).first()
    if found is None or found.until < ctx.now():  # expect: PEN007
        raise ApplicationError("Your contract has ended.")
    return found


@app.query(access=signed_in)
async def me_safely(ctx: QueryCtx) -> Customer:
    email = (await ctx.auth.require()).email
    found = await ctx.db.query(Customer).with_index(Customer.by_email, email=email).first()
    if found is None or found.until < ctx.now():
        raise ApplicationError("Your contract has ended.")
    return found


@app.mutation
async def enter(ctx: MutationCtx, plate: str, floor: int) -> Id[Ticket]:  # expect: PEN006
    if await inside(ctx, plate):
        raise ApplicationError("It is inside already.")
    return await ctx.db.insert(Ticket(plate=plate, floor=floor, entered_at=ctx.now()))


@app.mutation()
async def enter_checked(ctx: MutationCtx, plate: str, floor: int) -> Id[Ticket]:
    await ctx.check_access(look_up, plate)
    return await enter(ctx, plate, floor)


@app.mutation(access=public)
async def leave(ctx: MutationCtx, leaving: Leaving) -> None:
    ticket = await inside(ctx, leaving.plate)
    if ticket is None:
        raise ApplicationError("It is not inside.")
    due = fee(ticket.entered_at, ctx.now())
    if due.cents > leaving.paid:
        raise ApplicationError("Pay first.")
    await ctx.db.patch(Ticket, ticket.id, left_at=ctx.now(), cents=due.cents)
    await receipts.with_options(retry=True).enqueue(ctx, receipt, ticket.id)


@app.mutation(access=staff)
async def free(ctx: MutationCtx, ticket: Id[Ticket]) -> None:
    await ctx.db.delete(id=ticket)  # expect: PEN013


@app.mutation(access=staff)
async def lock(ctx: MutationCtx, gate: Id[Gate]) -> None:
    async with closed_gate(ctx, gate) as row:
        audit.info("closed %s", row.name)
    await asyncio.sleep(1)  # expect: PEN015


@app.mutation(access=staff)
async def invoice_number(ctx: MutationCtx) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, str(ctx.now())))


@app.mutation(access=staff)
async def voucher(ctx: MutationCtx, note: object) -> str:  # expect: PEN005
    log.info("voucher", note=note)
    return uuid.uuid4().hex  # expect: PEN014


@app.mutation(access=staff)
def print_list(ctx: sync.MutationCtx, floor: int) -> int:
    rows = ctx.db.query(Ticket).with_index(Ticket.by_floor, floor=floor).take(100)
    with tempfile.NamedTemporaryFile("w") as file:  # expect: PEN015
        file.writelines(one.plate for one in rows)
    return len(rows)


@app.mutation(access=staff)
async def sync_accounting(ctx: MutationCtx) -> int:
    async with await psycopg.AsyncConnection.connect("dbname=accounting") as other:  # expect: PEN015
        found = await other.execute("select count(*) from invoice")
        return cast("int", (await found.fetchone())[0])


@app.mutation(access=owner_of(Customer, "customer"))
async def change_plate(ctx: MutationCtx, customer: Id[Customer], plate: str) -> None:
    changed = ctx.db.patch(Customer, customer, plate=plate)
    audit.info("changed a plate")
    await changed


@app.mutation(access=owner_of(Customer, "customer"))
async def change_bank(ctx: MutationCtx, customer: Id[Customer], iban: str) -> None:
    row = ctx.db.get(Customer, customer)  # expect: PEN001
    audit.info("changed the bank of %s", row)
    _ = await ctx.db.patch(Customer, customer, iban=iban)


@app.internal_query
async def open_ticket(ctx: QueryCtx, plate: str) -> Ticket | None:
    return await inside(ctx, plate)


@app.internal_query
async def customer_of(ctx: QueryCtx, plate: str) -> Customer | None:
    return await ctx.db.query(Customer).with_index(Customer.by_plate, plate=plate).unique()


@app.internal_mutation
async def charge(ctx: MutationCtx, plate: str, cents: int) -> None:
    ticket = await ctx.run_query(open_ticket, plate)  # expect: PEN009
    await ctx.db.patch(Ticket, ticket.id, cents=cents)


@app.internal_action
async def charge_customer(ctx: ActionCtx, plate: str) -> None:
    ticket = await ctx.run_query(open_ticket, plate)
    if ticket is None:
        log.info("nobody", plate=plate)
        return
    customer = await ctx.run_query(customer_of, plate)  # expect: PEN011
    await collect_money(customer.iban, ticket.id, ticket.cents)
    await ctx.run_mutation(charge, plate, ticket.cents)


async def collect_money(iban: str, key: str, cents: int) -> None:
    log.info("collected", iban=iban, key=key, cents=cents)


@app.internal_action
async def both(ctx: ActionCtx, plate: str) -> tuple[Any, Any]:
    return tuple(await asyncio.gather(ctx.run_query(open_ticket, plate), ctx.run_query(customer_of, plate)))  # expect: PEN011


@app.internal_action
async def receipt(ctx: ActionCtx, ticket: Id[Ticket]) -> None:
    log.info("receipt", ticket=ticket)


@app.internal_action
async def receipts_of(ctx: ActionCtx, tickets: list[Id[Ticket]]) -> None:
    for one in tickets:
        await ctx.run_action(receipt, one)  # expect: PEN010


@app.internal_action
async def close_day(ctx: ActionCtx, plates: list[str]) -> None:
    async with asyncio.timeout(30):
        await ctx.run_mutation(charge, plates[0], 0)
        await ctx.scheduler.run_after(timedelta(hours=1), receipts_of, plates)  # expect: PEN016


@app.internal_action
async def open_day(ctx: ActionCtx) -> None:
    await ctx.scheduler.run_after(timedelta(hours=12), close_day, [])


@app.internal_mutation
async def receipt_done(ctx: MutationCtx, work_id: WorkId, result: WorkResult[None], context: Any) -> None:
    audit.info("%s: %s", work_id, result.kind)


@app.internal_mutation
async def send_receipts(ctx: MutationCtx, floor: int) -> None:
    rows = await newest_tickets(ctx, floor)
    for row in rows:
        pool = receipts.with_options(retry=True, on_complete=receipt_done, context={"ticket": row.id})
        await pool.enqueue(ctx, receipt, row.id)
    plates = sorted({one.plate for one in await ctx.db.query(Ticket).with_index(Ticket.by_floor, floor=floor).collect()})
    await receipts.with_options(on_complete=receipt_done, context={"plates": plates}).enqueue(ctx, receipt, rows[0].id)  # expect: PEN020


@app.reactive_task(Ticket, filter=lambda t: t.cents > 0)
async def book_in(ctx: MutationTaskCtx[Ticket]) -> None:
    ticket = await ctx.get_document()
    ctx.db.patch(Ticket, ticket.id, floor=0)  # expect: PEN001


@app.outbox(Ticket)
async def mirror(ctx: MutationCtx, ticket: Ticket) -> None:
    adapter = TypeAdapter(Fee)
    audit.info("%s", adapter.dump_python(Fee(ticket.cents, 1)))
    await ctx.scheduler.run_after(timedelta(0), enter, ticket.plate, 1)  # expect: PEN008
