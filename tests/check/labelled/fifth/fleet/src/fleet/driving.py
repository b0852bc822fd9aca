from typing import Union

import penstock
from penstock import ApplicationError, Id, owner_of, signed_in
from penstock.sync import MutationCtx, QueryCtx

from fleet import app
from fleet.base import Fine, Position, Trip, Vehicle
from fleet.tools import drivers_only, nickname, vehicle

public = penstock.public


@app.mutation(access=signed_in)
def christen(ctx: MutationCtx, plate: str) -> str:
    name = nickname()
    ctx.db.patch(Vehicle, vehicle(ctx, plate).id, driver=name)
    return name


@app.mutation(access=owner_of(Trip, "trip", field="driver"))
def stop_well(ctx: MutationCtx, trip: Id[Trip], km: int) -> None:
    ctx.db.patch(Trip, trip, ended=ctx.now(), km=km)


@app.mutation(access=owner_of(Trip, "trip", field="driver"))
def overwrite(ctx: MutationCtx, trip: Id[Trip], row: Union[Trip, None]) -> None:  # expect: PEN005
    if row is not None:
        ctx.db.replace(Trip, trip, row)


@app.mutation
@drivers_only
def report(ctx: MutationCtx, plate: str, lat: float, lon: float) -> None:
    ctx.db.insert(Position(vehicle=vehicle(ctx, plate).id, lat=lat, lon=lon, at=ctx.now()))


@app.query(access=signed_in)
def last_one(ctx: QueryCtx, vehicle: Id[Vehicle]) -> Position | None:
    return ctx.db.query(Position).with_index(Position.by_vehicle_at, car=vehicle).order("desc").first()  # expect: PEN021


@app.query(access=signed_in)
def fines(ctx: QueryCtx, plate: str) -> list[Fine]:
    return ctx.db.query(Fine).filter(lambda fine: fine.plate == plate).take(20)  # expect: PEN002


@app.query(access=signed_in)
def unpaid(ctx: QueryCtx) -> list[Fine]:
    return ctx.db.query(Fine).filter(lambda fine: not fine.paid).take(20)


@app.query(access=public)
def latest_fines(ctx: QueryCtx) -> list[Fine]:
    rows = ctx.db.query(Fine).order("desc").take(100)
    return [fine for fine in rows if fine.cents > 100]


@app.mutation(access=public)
def take_over(ctx: MutationCtx, trip: Id[Trip], driver: str) -> None:
    row = ctx.db.get(Trip, trip)
    if row is None:
        raise ApplicationError("no such trip")
    same = row.driver == driver  # expect: PEN007
    if not same:
        raise ApplicationError("not yours")
    ctx.db.delete(Trip, trip)
