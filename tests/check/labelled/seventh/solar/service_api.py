"""What owners and electricians call."""

import json
import secrets
import socket
import sqlite3
import subprocess
import time
from functools import wraps
from typing import Annotated, Any, TypeAlias

import requests
from pydantic import BaseModel, Field
from solar.panels import Panel, Panels, Reading, Roof, Roofs, Service, Yield, app

from penstock import ApplicationError, Id, MutationCtx, QueryCtx, owner_of, public, signed_in, sync

Watts: TypeAlias = Annotated[int, Field(ge=0, le=1000)]
Anything: TypeAlias = dict[str, Any]
Names = list[str]
BROKER = ("mqtt.example.com", 1883)
owner = owner_of(Roof, "roof")


class Street(BaseModel):
    street: str
    town: str


def traced(function):
    @wraps(function)
    async def inner(*args, **kwargs):
        return await function(*args, **kwargs)

    return inner


async def electrician(ctx: QueryCtx) -> bool:
    identity = await ctx.auth.get_user_identity()
    return identity is not None and identity.issuer.endswith("electricians")


@app.query(access=signed_in)
async def my_roofs(ctx: QueryCtx) -> list[Roof]:
    identity = await ctx.auth.require()
    return await Roofs(ctx).of(identity.token_identifier)


@app.query(access=electrician)
async def roofs_in(ctx: QueryCtx, town: str) -> Names:
    return [one.street for one in await Roofs(ctx).in_town(town)]


@app.query(access=electrician)
async def broken_panels(ctx: QueryCtx) -> int:
    panels = Panels(ctx)
    return len(panels.broken())  # expect: PEN001


@app.query(access=electrician | owner)
async def watts_of(ctx: QueryCtx, roof: Id[Roof]) -> int:
    total: Yield = await Panels(ctx).working(roof)
    return total.watts


@app.query(access=electrician)
async def as_json(ctx: QueryCtx, panel: Id[Panel]) -> Any:  # expect: PEN005
    return json.loads((await Panels(ctx).one(panel)).model_dump_json())


@app.query(access=electrician)
async def details(ctx: QueryCtx, panel: Id[Panel]) -> Anything:  # expect: PEN005
    return (await Panels(ctx).one(panel)).model_dump()


@app.query(access=electrician)
async def serials(ctx: QueryCtx, panels: list[Id[Panel]]) -> dict[str, str]:
    return {one: (await ctx.db.get(Panel, one)).serial for one in panels}


@app.query
@traced
async def street(ctx: QueryCtx, roof: Id[Roof]) -> Street:  # expect: PEN006
    row = await Roofs(ctx).one(roof)
    return Street(street=row.street, town=row.town)


@app.query
@traced
async def own_street(ctx: QueryCtx, roof: Id[Roof]) -> Street | None:
    row = await Roofs(ctx).one(roof)
    user = await ctx.auth.get_user_identity()
    if user is None or user.token_identifier != row.owner:
        return None
    return Street(street=row.street, town=row.town)


@app.query(access=public)
async def neighbours(ctx: QueryCtx, owner: str) -> int:
    found = await Roofs(ctx).of(owner)
    return len(found)


@app.query(access=signed_in)
def count_sync(ctx: sync.QueryCtx, roof: Id[Roof]) -> int:
    return ctx.db.query(Panel).with_index(Panel.by_roof, roof=roof).count()


@app.query(access=signed_in)
def serials_sync(ctx: sync.QueryCtx) -> list[str]:
    return [one.serial for one in ctx.db.query(Panel).collect()]  # expect: PEN003


@app.query(access=signed_in)
def by_serial_sync(ctx: sync.QueryCtx, serial: str) -> Panel | None:
    return ctx.db.query(Panel).filter(lambda one: one.serial == serial).first()  # expect: PEN002


@app.mutation(access=electrician)
def wait_for_meter(ctx: sync.MutationCtx, panel: Id[Panel]) -> None:
    time.sleep(0.5)  # expect: PEN015
    ctx.db.patch(Panel, panel, broken=False)


@app.mutation(access=electrician)
def announce(ctx: sync.MutationCtx, panel: Id[Panel]) -> None:
    with socket.create_connection(BROKER) as wire:  # expect: PEN015
        wire.sendall(panel.encode())


@app.mutation(access=electrician)
def reset_meter(ctx: sync.MutationCtx, panel: Id[Panel]) -> None:
    subprocess.run(["meterctl", "reset", panel], check=True)  # expect: PEN015
    ctx.db.patch(Panel, panel, broken=False)


@app.mutation(access=owner)
async def copy_from_old(ctx: MutationCtx, roof: Id[Roof]) -> None:
    old = sqlite3.connect("/srv/old.db")  # expect: PEN015
    for serial, watts in old.execute("select serial, watts from panel"):
        await Service(ctx).add(roof, serial, watts)


@app.mutation(access=owner)
async def add_panel(ctx: MutationCtx, roof: Id[Roof], serial: str, watts: Watts) -> Id[Panel]:
    return await Service(ctx).add(roof, serial, watts)


@app.mutation(access=owner)
async def swap_panel(ctx: MutationCtx, roof: Id[Roof], old: Id[Panel], serial: str) -> None:
    service = Service(ctx)
    service.swap(old, serial)  # expect: PEN001


@app.mutation(access=owner)
async def rename(ctx: MutationCtx, roof: Id[Roof], where: Street) -> Roof:
    return await ctx.db.patch(Roof, roof, street=where.street, town=where.town)


@app.mutation(access=owner)
async def move(ctx: MutationCtx, roof: Id[Roof], where: Street) -> Roof:
    return await ctx.db.patch(Roof, roof, street=where.street, city=where.town)  # expect: PEN021


@app.mutation(access=signed_in)
async def pair(ctx: MutationCtx, serial: str) -> str:
    code = secrets.token_urlsafe(6)  # expect: PEN014
    await ctx.db.query(Panel).with_index(Panel.by_serial, serial=serial).unique()
    return code


@app.mutation(access=public)
async def leave(ctx: MutationCtx, roof: Id[Roof], user_id: str) -> None:
    row = await ctx.db.get(Roof, roof)
    if user_id != row.owner:  # expect: PEN007
        raise PermissionError(user_id)
    await ctx.db.delete(Roof, roof)


@app.mutation(access=signed_in)
async def sell(ctx: MutationCtx, roof: Id[Roof], new_owner: str) -> None:
    me = (await ctx.auth.require()).token_identifier
    row = await ctx.db.get(Roof, roof)
    if row.owner != me:
        raise ApplicationError("This is not your roof.")
    if row.owner == new_owner:
        raise ApplicationError("It belongs to them already.")
    await ctx.db.patch(Roof, roof, owner=new_owner)


@app.mutation(access=electrician)
async def forget(ctx: MutationCtx) -> int:
    return await Service(ctx).drop_old()


@app.action(access=electrician)
def weather(ctx: sync.ActionCtx, town: str) -> float:
    time.sleep(1)
    return requests.get("https://weather.example.com", params={"town": town}, timeout=5).json()["sun"]


@app.action(access=electrician)
def fill_in(ctx: sync.ActionCtx, panels: list[Id[Panel]]) -> None:
    for panel in panels:
        ctx.run_mutation(note, panel)  # expect: PEN012


@app.internal_mutation
def note(ctx: sync.MutationCtx, panel: Id[Panel]) -> None:
    ctx.db.insert(Reading(panel=panel, at=ctx.now(), watts=0))
