"""What the doors of the lockers and the phones of customers call."""

import asyncio
import random
import secrets
import time
import uuid
from datetime import UTC, date, datetime, timedelta
from typing import Any

import httpx
import penstock as ps
from penstock import ApplicationError, Id, MutationCtx, Page, PaginationOptions, QueryCtx, gte, lt, signed_in

from lockers.db import Box, Parcel, Scan, Site, Staff, app, everyone, texts
from lockers.work import bill, ping, ring

LIMIT = 100


async def me(ctx: QueryCtx) -> str:
    return (await ctx.auth.require()).token_identifier


async def staff(ctx: QueryCtx) -> bool:
    return await ctx.db.query(Staff).with_index(Staff.by_user, user=await me(ctx)).first() is not None


async def by_mail(ctx: QueryCtx, email: str) -> bool:
    found = await ctx.db.query(Staff).with_index(Staff.by_email, email=email).first()
    return found is not None and found.boss


# Sites


@app.query(access=everyone)
async def sites(ctx: QueryCtx, city: str) -> list[Site]:
    return await ctx.db.query(Site).with_index(Site.by_city_street, city=city).take(LIMIT)


@app.query(access=ps.public)
async def all_sites(ctx: QueryCtx) -> list[Site]:
    return await ctx.db.query(Site).collect()  # expect: PEN003


@app.query(access=everyone)
async def site_count(ctx: QueryCtx) -> int:
    return await ctx.db.query(Site).count()


@app.query(access=everyone)
async def how_many_sites(ctx: QueryCtx, city: str) -> int:
    return len(await ctx.db.query(Site).with_index(Site.by_city, city=city).collect())  # expect: PEN003


@app.query(access=everyone)
async def open_sites(ctx: QueryCtx, city: str) -> list[Site]:
    rows = await ctx.db.query(Site).with_index(Site.by_city_street, city=city).take(50)
    return [s for s in rows if s.open]


@app.query(access=everyone)
async def in_city(ctx: QueryCtx, city: str) -> list[Site]:
    return await ctx.db.query(Site).filter(lambda s: s.city == city).take(20)  # expect: PEN002


@app.query(access=everyone)
async def in_cities(ctx: QueryCtx, cities: list[str]) -> list[Site]:
    return [s async for s in ctx.db.query(Site) if s.city in cities][:LIMIT]  # missed: PEN002


@app.query(access=everyone)
async def like(ctx: QueryCtx, word: str) -> list[Site]:
    return await ctx.db.query(Site).filter(lambda s: word in s.street).take(20)


@app.query(access=everyone)
async def like_all(ctx: QueryCtx, word: str) -> list[Site]:
    return await ctx.db.query(Site).filter(lambda s: s.street.startswith(word)).collect()  # expect: PEN003


@app.query(access=everyone)
async def page_of_sites(ctx: QueryCtx, city: str, pagination_opts: PaginationOptions) -> Page[Site]:
    return await ctx.db.query(Site).filter(lambda s: s.city == city).paginate(pagination_opts)


@app.mutation(access=staff)
async def add_site(ctx: MutationCtx, city: str, street: str) -> Id[Site]:
    return await ctx.db.insert(Site(city=city, street=street))


@app.mutation(access=staff)
async def add_sites(ctx: MutationCtx, rows: list[Site]) -> None:  # expect: PEN005
    await ctx.db.insert_many(rows)


@app.mutation(access=staff)
async def shut(ctx: MutationCtx, site: Id[Site]) -> None:
    ctx.db.patch(Site, site, open=False)  # expect: PEN001


@app.mutation(access=staff)
async def unshut(ctx: MutationCtx, site: Id[Site]) -> None:
    await ctx.db.patch(Site, site, open=True)


@app.mutation(access=staff)
async def rename(ctx: MutationCtx, site: Id[Site], to: str) -> None:
    await ctx.db.patch(Site, site, name=to)  # expect: PEN021


@app.mutation(access=staff)
async def move(ctx: MutationCtx, site: Id[Site], to: str) -> None:
    await ctx.db.patch(Site, site, street=to, city="Brno")


@app.mutation(access=by_mail)  # expect: PEN007
async def drop_site(ctx: MutationCtx, site: Id[Site], email: str) -> None:
    await ctx.db.delete(Site, site)


@app.mutation(access=staff)
async def drop_it(ctx: MutationCtx, site: Id[Site]) -> None:
    await ctx.db.delete(site)  # expect: PEN013


# Boxes


@app.query(access=everyone)
async def boxes(ctx: QueryCtx, site: Id[Site]) -> list[Box]:
    return await ctx.db.query(Box).with_index(Box.by_site, site=site).take(40)


@app.query(access=everyone)
async def boxes_of_size(ctx: QueryCtx, site: Id[Site], size: str) -> list[Box]:
    return await ctx.db.query(Box).with_index(Box.by_site_size, site=site, size=size).collect()


@app.query(access=everyone)
async def boxes_by_parcel(ctx: QueryCtx, site: Id[Site]) -> list[Box]:
    return await ctx.db.query(Box).with_index(Box.by_site_size, site=site, parcel=None).take(5)  # expect: PEN021


@app.query(access=everyone)
async def empty_boxes(ctx: QueryCtx, site: Id[Site]) -> list[Box]:
    q = ctx.db.query(Box).with_index(Box.by_site, site=site)
    return [b async for b in q if b.parcel is None]


@app.query(access=everyone)
async def broken_boxes(ctx: QueryCtx) -> list[Box]:
    found = []
    for b in await ctx.db.query(Box).collect():  # expect: PEN003  # missed: PEN002
        if b.broken:
            found.append(b)
    return found


@app.query(access=everyone)
async def first_box(ctx: QueryCtx, site: Id[Site]) -> Box | None:
    return ctx.db.query(Box).with_index(Box.by_site, site=site).first()  # expect: PEN001


@app.query(access=staff)
async def box(ctx: QueryCtx, id: Id[Box]) -> Box | None:
    return await ctx.db.get(Box, id)


@app.query(access=staff)
async def any_box(ctx: QueryCtx, id: Id[Box]) -> Box | None:
    db = ctx.db
    return await db.get(id)  # expect: PEN013


@app.query
async def free(ctx: QueryCtx, site: Id[Site]) -> int:  # expect: PEN006
    return await ctx.db.query(Box).with_index(Box.by_site, site=site).count()


@app.query
async def mine(ctx: QueryCtx) -> list[Parcel]:
    return await ctx.db.query(Parcel).with_index(Parcel.by_owner, owner=await me(ctx)).take(LIMIT)


@app.mutation(rate_limit="open")
async def open_box(ctx: MutationCtx, id: Id[Box]) -> None:  # expect: PEN006
    await ctx.scheduler.run_after(timedelta(0), ping, id)


@app.mutation(rate_limit="open", access=signed_in)
async def open_mine(ctx: MutationCtx, id: Id[Box]) -> None:
    await ctx.scheduler.run_after(timedelta(0), ping, id)


@app.mutation(access=staff)
async def mark(ctx: MutationCtx, ids: list[Id[Box]]) -> None:
    await asyncio.gather(*(ctx.db.patch(Box, i, broken=True) for i in ids))


@app.mutation(access=staff)
async def unmark(ctx: MutationCtx, ids: list[Id[Box]]) -> None:
    for i in ids:
        ctx.db.patch(Box, i, broken=False)  # expect: PEN001


# Parcels


def pin() -> str:
    return "".join(random.choices("0123456789", k=6))  # expect: PEN014


def pin_from(chance: random.Random) -> str:
    return "".join(chance.choices("0123456789", k=6))


def shelf_of(code: str) -> int:
    return random.Random(code).randrange(10)


@app.mutation(access=staff)
async def arrive(ctx: MutationCtx, owner: str) -> Id[Parcel]:
    return await ctx.db.insert(Parcel(code=pin(), owner=owner, due=ctx.now() + timedelta(days=3)))


@app.mutation(access=staff)
async def arrive_well(ctx: MutationCtx, owner: str) -> Id[Parcel]:
    code = pin_from(ctx.random)
    return await ctx.db.insert(Parcel(code=code, owner=owner, due=ctx.now() + timedelta(days=3)))


@app.mutation(access=staff)
async def arrive_at_night(ctx: MutationCtx, owner: str) -> Id[Parcel]:
    due = datetime.now(UTC) + timedelta(days=3)  # expect: PEN014
    return await ctx.db.insert(Parcel(code=pin_from(ctx.random), owner=owner, due=due))


@app.mutation(access=staff)
async def arrive_on(ctx: MutationCtx, owner: str, day: date) -> Id[Parcel]:
    due = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return await ctx.db.insert(Parcel(code=str(shelf_of(owner)), owner=owner, due=due))


@app.mutation(access=staff)
async def arrive_with_id(ctx: MutationCtx, owner: str) -> Id[Parcel]:
    return await ctx.db.insert(Parcel(code=uuid.uuid4().hex, owner=owner, due=ctx.now()))  # expect: PEN014


@app.mutation(access=staff)
async def arrive_known(ctx: MutationCtx, owner: str, waybill: str) -> Id[Parcel]:
    code = uuid.uuid5(uuid.NAMESPACE_URL, waybill).hex
    return await ctx.db.insert(Parcel(code=code, owner=owner, due=ctx.now()))


@app.query(access=staff)
async def overdue(ctx: QueryCtx) -> list[Parcel]:
    return await ctx.db.query(Parcel).with_index(Parcel.by_due, due=lt(ctx.now())).take(LIMIT)


@app.query(access=staff)
async def late(ctx: QueryCtx) -> list[Parcel]:
    now = ctx.now()
    return await ctx.db.query(Parcel).filter(lambda p: p.due < now).take(LIMIT)  # expect: PEN002


@app.query(access=staff)
async def heavy(ctx: QueryCtx) -> Parcel | None:
    return await ctx.db.query(Parcel).filter(lambda p: p.grams > 20_000).first()  # expect: PEN002


@app.query(access=staff)
async def odd(ctx: QueryCtx) -> list[Parcel]:
    return await ctx.db.query(Parcel).filter(lambda p: p.grams % 10 != 0).take(5)


@app.query(access=staff)
async def days_left(ctx: QueryCtx, parcel: Id[Parcel]) -> int:
    p = await ctx.db.get(Parcel, parcel)
    return 0 if p is None else (p.due.date() - date.today()).days  # expect: PEN014


@app.query(access=staff)
async def weight(ctx: QueryCtx, owner: str) -> int:
    return await ctx.db.query(Parcel).with_index(Parcel.by_owner, owner=owner).sum("grams")


@app.query(access=staff)
async def soon(ctx: QueryCtx, owner: str) -> list[Parcel]:
    due = gte(ctx.now()) & lt(ctx.now() + timedelta(days=1))
    q = ctx.db.query(Parcel)
    return await q.with_index(Parcel.by_owner_state_due, owner=owner, state="in", due=due).collect()


@app.query(access=staff)
async def waiting(ctx: QueryCtx, owner: str) -> list[Parcel]:
    q = ctx.db.query(Parcel)
    return await q.with_index(Parcel.by_owner, owner=owner, box=None).take(9)  # expect: PEN021


@app.mutation(access=everyone)
async def fetch(ctx: MutationCtx, parcel: Id[Parcel], owner: str) -> None:
    p = await ctx.db.get(Parcel, parcel)
    if not p or p.owner != owner:  # expect: PEN007
        raise ApplicationError("not yours")
    await ctx.db.patch(Parcel, parcel, state="gone")


@app.mutation(access=everyone)
async def fetch_by_code(ctx: MutationCtx, parcel: Id[Parcel], code: str) -> None:
    p = await ctx.db.get(Parcel, parcel)
    if not p or not secrets.compare_digest(p.code, code):
        raise ApplicationError("wrong code")
    await ctx.db.patch(Parcel, parcel, state="gone")


@app.mutation(access=signed_in)
async def fetch_mine(ctx: MutationCtx, parcel: Id[Parcel]) -> None:
    p = await ctx.db.get(Parcel, parcel)
    if not p or p.owner != await me(ctx):
        raise ApplicationError("not yours")
    await ctx.db.patch(Parcel, parcel, state="gone")


@app.mutation(access=signed_in)
async def put(ctx: MutationCtx, parcel: Id[Parcel], box: Id[Box], grams: int) -> None:
    if grams > 30_000:
        raise ApplicationError("too heavy")
    b = await ctx.db.get(Box, box)
    if b is None or b.parcel is not None:
        raise ApplicationError("taken")
    await ctx.db.patch(Box, box, parcel=parcel)
    await ctx.db.patch(Parcel, parcel, box=box, weight=grams)  # expect: PEN021


@app.mutation(access=signed_in)
async def hand_over(ctx: MutationCtx, parcel: Id[Parcel], role: str) -> None:
    if role != "courier":  # missed: PEN007
        raise ApplicationError("couriers only")
    await ctx.db.patch(Parcel, parcel, state="in")


@app.mutation(access=signed_in)
async def resize(ctx: MutationCtx, box: Id[Box], size: str) -> None:
    if size not in ("S", "M", "L"):
        raise ApplicationError("no such size")
    await ctx.db.patch(Box, box, size=size)


@app.mutation(access=signed_in)
async def give(ctx: MutationCtx, parcel: Id[Parcel], to: str) -> None:
    p = await ctx.db.get(Parcel, parcel)
    if p is None or p.owner == to:
        raise ApplicationError("you have it")
    await ctx.db.patch(Parcel, parcel, owner=to)


@app.mutation(access=staff)
async def edit(ctx: MutationCtx, parcel: Id[Parcel], change: dict[str, Any]) -> None:  # expect: PEN005
    await ctx.db.patch(Parcel, parcel, **change)


@app.mutation(access=staff)
async def labels(ctx: MutationCtx, names: dict[str, str]) -> int:
    return len(names)


@app.query(access=staff)
async def raw(ctx: QueryCtx, parcel: Id[Parcel]) -> Any:  # expect: PEN005
    return await ctx.db.get(Parcel, parcel)


@app.query(access=staff)
async def shown(ctx: QueryCtx, parcel: Id[Parcel]):  # expect: PEN005
    return await ctx.db.get(Parcel, parcel)


@app.internal_query
async def anything(ctx: QueryCtx, what: Any) -> dict:
    return {"what": what}


@app.mutation(access=staff)
async def tell(ctx: MutationCtx, parcel: Id[Parcel], phone: str) -> None:
    await texts.enqueue(ctx, ring, phone, parcel)


@app.mutation(access=staff)
async def tell_later(ctx: MutationCtx, parcel: Id[Parcel], phone: str) -> None:
    texts.with_options(run_after=timedelta(hours=1)).enqueue(ctx, ring, phone, parcel)  # expect: PEN001


@app.mutation(access=staff)
async def tell_now(ctx: MutationCtx, phone: str) -> None:
    async with httpx.AsyncClient() as c:  # expect: PEN015
        await c.post("https://sms.example.com", json={"to": phone})


@app.mutation(access=staff)
async def wait_a_bit(ctx: MutationCtx, box: Id[Box]) -> None:
    await asyncio.sleep(1)  # expect: PEN015
    await ctx.db.patch(Box, box, broken=False)


@app.mutation(access=staff)
async def nap(ctx: MutationCtx, box: Id[Box]) -> None:
    time.sleep(0.1)  # expect: PEN015
    await ctx.db.patch(Box, box, broken=False)


@app.mutation(access=staff)
async def gone(ctx: MutationCtx, parcel: Id[Parcel]) -> None:
    await ctx.db.patch(Parcel, parcel, state="gone")
    await ctx.scheduler.run_at(ctx.now() + timedelta(days=30), forget, parcel)  # expect: PEN008


@app.mutation(access=staff)
async def forget(ctx: MutationCtx, parcel: Id[Parcel]) -> None:
    await ctx.db.delete(Parcel, parcel)


@app.internal_mutation
async def forget_soon(ctx: MutationCtx, parcel: Id[Parcel]) -> None:
    await forget(ctx, parcel)


@app.mutation(access=staff)
async def away(ctx: MutationCtx, parcel: Id[Parcel]) -> None:
    await ctx.scheduler.run_after(timedelta(days=30), forget_soon, parcel)


@app.mutation(access=staff)
async def charge(ctx: MutationCtx, parcel: Id[Parcel]) -> None:
    await ctx.run_mutation(forget_soon, parcel)  # expect: PEN009
    await ctx.scheduler.run_after(timedelta(0), bill, parcel)


@app.mutation(access=staff)
async def try_to_forget(ctx: MutationCtx, parcels: list[Id[Parcel]]) -> int:
    done = 0
    for p in parcels:
        try:
            await ctx.run_mutation(forget_soon, p)
        except ApplicationError:
            continue
        done += 1
    return done


@app.query(access=staff)
async def kinds(ctx: QueryCtx, kind: str) -> list[Scan]:
    return await ctx.db.query(Scan).with_index(Scan.by_kind, kind=kind).take(10)


@app.query(access=staff)
async def scans(ctx: QueryCtx, parcel: Id[Parcel]) -> list[Scan]:
    return await ctx.db.query(Scan).with_index(Scan.by_parcel, parcel=parcel).collect()


@app.query(access=staff)
async def scanned(ctx: QueryCtx, parcel: Id[Parcel]) -> bool:
    return any(s.parcel == parcel for s in await ctx.db.query(Scan).order("desc").take(100))


@app.query(access=staff)
async def every_scan(ctx: QueryCtx) -> list[Scan]:
    return await ctx.db.query(Scan).with_index(Scan.by_at).collect()  # expect: PEN003


@app.query(access=staff)
async def posts(ctx: QueryCtx) -> list[Staff]:
    return await ctx.db.query(Staff).collect()  # penstock: ignore[PEN003] a dozen people work here


@app.query(access=staff)
async def some_posts(ctx: QueryCtx) -> list[Staff]:
    return await ctx.db.query(Staff).take(12)  # expect: PEN000  # penstock: ignore[PEN003] a dozen people


@app.query(access=staff)
async def team(ctx: QueryCtx) -> list[Staff]:
    return await ctx.db.query(Staff).collect()  # expect: PEN000, PEN003  # penstock: ignore[PEN003]
