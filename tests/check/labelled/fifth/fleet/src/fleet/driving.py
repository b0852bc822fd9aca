from datetime import datetime as DateTime
from datetime import timedelta, timezone
from typing import List, Union

import penstock
from penstock import ApplicationError, Id, owner_of, signed_in, sync
from penstock.sync import MutationCtx, QueryCtx

import fleet.base as base
from fleet import app
from fleet.base import Fine, Position, Trip, Vehicle
from fleet.tools import drivers_only, find, nickname, ping, vehicle

public = penstock.public
SHORT = timedelta(minutes=5)


@app.mutation(access=signed_in)
def start(ctx: MutationCtx, plate: str) -> Id[Trip]:
    me = ctx.auth.require()
    car = vehicle(ctx, plate)
    return ctx.db.insert(Trip(vehicle=car.id, driver=me.token_identifier, started=ctx.now()))


@app.mutation(access=signed_in)
def start_now(ctx: MutationCtx, plate: str) -> Id[Trip]:
    car = vehicle(ctx, plate)
    return ctx.db.insert(Trip(vehicle=car.id, driver="", started=DateTime.now(tz=timezone.utc)))  # expect: PEN014


@app.mutation(access=signed_in)
def christen(ctx: MutationCtx, plate: str) -> str:
    name = nickname()
    ctx.db.patch(Vehicle, vehicle(ctx, plate).id, driver=name)
    return name


@app.mutation(access=signed_in)
def wake(ctx: MutationCtx, plate: str) -> bool:
    return ping(vehicle(ctx, plate).depot)


@app.mutation(access=owner_of(Trip, "trip", field="driver"))
def stop(ctx: MutationCtx, trip: Id[Trip], km: int) -> None:
    db = ctx.db
    db.patch(trip, ended=ctx.now(), km=km)  # expect: PEN013


@app.mutation(access=owner_of(Trip, "trip", field="driver"))
def stop_well(ctx: MutationCtx, trip: Id[Trip], km: int) -> None:
    ctx.db.patch(Trip, trip, ended=ctx.now(), km=km)


@app.mutation(access=owner_of(Trip, "trip", field="driver"))
def stop_wrongly(ctx: MutationCtx, trip: Id[Trip], km: int) -> None:
    ctx.db.patch(Trip, trip, stopped=ctx.now(), kilometres=km)  # expect: PEN021


@app.mutation(access=owner_of(Trip, "trip", field="driver"))
def overwrite(ctx: MutationCtx, trip: Id[Trip], row: Union[Trip, None]) -> None:  # expect: PEN005
    if row is not None:
        ctx.db.replace(Trip, trip, row)


@app.mutation
@drivers_only
def report(ctx: MutationCtx, plate: str, lat: float, lon: float) -> None:
    ctx.db.insert(Position(vehicle=vehicle(ctx, plate).id, lat=lat, lon=lon, at=ctx.now()))


@app.mutation(name="report_for")
def report_for(ctx: MutationCtx, plate: str, lat: float, lon: float) -> None:  # expect: PEN006
    ctx.db.insert(Position(vehicle=vehicle(ctx, plate).id, lat=lat, lon=lon, at=ctx.now()))


@app.query(access=signed_in)
def last(ctx: QueryCtx, vehicle: Id[Vehicle]) -> Position | None:
    return ctx.db.query(Position).with_index(Position.by_vehicle_at, vehicle=vehicle).order("desc").first()


@app.query(access=signed_in)
def last_one(ctx: QueryCtx, vehicle: Id[Vehicle]) -> Position | None:
    return ctx.db.query(Position).with_index(Position.by_vehicle_at, car=vehicle).order("desc").first()  # expect: PEN021


@app.query(access=signed_in)
def recent(ctx: QueryCtx, vehicle: Id[Vehicle]) -> List[Position]:
    since = ctx.now() - SHORT
    return ctx.db.query(Position).filter(lambda p: p.vehicle == vehicle and p.at >= since).take(50)  # expect: PEN002


@app.query(access=signed_in)
def at_depot(ctx: QueryCtx, depot: str) -> list[str]:
    return [car.plate for car in find(ctx, depot)]


@app.query(access=signed_in)
def far(ctx: QueryCtx, depot: str) -> int:
    cars = ctx.db.query(Vehicle).with_index(base.Vehicle.by_depot, depot=depot)
    return cars.count()


@app.query(access=signed_in)
def fines(ctx: QueryCtx, plate: str) -> list[Fine]:
    return ctx.db.query(Fine).filter(lambda fine: fine.plate == plate).take(20)  # expect: PEN002


@app.query(access=signed_in)
def unpaid(ctx: QueryCtx) -> list[Fine]:
    return ctx.db.query(Fine).filter(lambda fine: not fine.paid).take(20)


@app.query(access=public)
def fine_total(ctx: QueryCtx) -> int:
    total = 0
    for fine in ctx.db.query(Fine).collect():  # expect: PEN003
        total += fine.cents
    return total


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


@app.mutation(access=signed_in)
def take_over_well(ctx: MutationCtx, trip: Id[Trip], driver: str) -> None:
    row = ctx.db.get(Trip, trip)
    if row is None or row.driver != ctx.auth.require().token_identifier:
        raise ApplicationError("not yours")
    ctx.db.patch(Trip, trip, driver=driver)


def _clear(ctx: sync.MutationCtx, trip: Id[Trip]) -> None:
    ctx.db.delete(Trip, trip)


clear = app.mutation(access=signed_in)(_clear)
