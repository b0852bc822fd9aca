from typing import Any

from elsewhere import Watched

from penstock import App, Id, Index, MutationCtx, Table, UserTable, signed_in

app = App()
COLUMNS = ("berth", "ship")


class Named(Table):
    name: str


class Ship(Named):
    flag: str
    berth: int = 0

    by_flag = Index("flag", "berth")
    by_berth = Index(*COLUMNS)


class Pilot(Watched, Table):
    boat: str


class Crane(UserTable, managed=False, source="cranes", key="id"):
    id: int
    load: int


@app.mutation(access=signed_in)
async def moor(ctx: MutationCtx, ship: Id[Ship], pilot: Id[Pilot], crane: Id[Crane], berth: int) -> None:
    await ctx.db.patch(Ship, ship, berth=berth, name="Ada")
    await ctx.db.patch(
        Ship,
        ship,
        birth=berth,  # expect: PEN021
        creation_time=None,  # expect: PEN021
    )
    await ctx.db.patch(Pilot, pilot, seen=True)  # what it derives from may have that
    await ctx.db.patch(Crane, crane, lode=1)  # expect: PEN021
    changes: dict[str, Any] = {"births": 1}
    await ctx.db.patch(Ship, ship, **changes)
