"""Words that several modules share."""

import functools
from random import choice as pick, randint

from penstock import ApplicationError, sync

from fleet.base import Vehicle


def drivers_only(function):
    """Refuse callers who have not signed in."""

    @functools.wraps(function)
    def guarded(ctx, *args, **kwargs):
        ctx.auth.require()
        return function(ctx, *args, **kwargs)

    return guarded


def vehicle(ctx: sync.QueryCtx, plate: str) -> Vehicle:
    found = ctx.db.query(Vehicle).with_index(Vehicle.by_plate, plate=plate).unique()
    if found is None:
        raise ApplicationError("There is no such vehicle.")
    return found


def find(ctx: sync.QueryCtx, depot: str) -> list[Vehicle]:
    return list(filter(lambda one: one.depot == depot, ctx.db.query(Vehicle).collect()))  # expect: PEN002, PEN003


def nickname() -> str:
    return pick(["ant", "bee", "cow"]) + str(randint(1, 9))  # expect: PEN014
