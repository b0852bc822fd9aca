
from penstock import signed_in
from penstock.sync import MutationCtx, QueryCtx

from fleet import app
from fleet.base import Fine, Position, Vehicle
from fleet.tools import drivers_only, nickname, vehicle


@app.mutation(access=signed_in)
def christen(ctx: MutationCtx, plate: str) -> str:
    name = nickname()
    ctx.db.patch(Vehicle, vehicle(ctx, plate).id, driver=name)
    return name


@app.mutation
@drivers_only
def report(ctx: MutationCtx, plate: str, lat: float, lon: float) -> None:
    ctx.db.insert(Position(vehicle=vehicle(ctx, plate).id, lat=lat, lon=lon, at=ctx.now()))


@app.query(access=signed_in)
def fines(ctx: QueryCtx, plate: str) -> list[Fine]:
    return ctx.db.query(Fine).filter(lambda fine: fine.plate == plate).take(20)  # expect: PEN002
