"""What penstock does for the rentals: mails in a pool, and a task for each bike that comes back."""

import os
from datetime import datetime

from penstock import ActionCtx, App, CustomJWT, Index, QueryCtx, TaskCtx, UserTable, is_none, signed_in

ISSUER = "https://rental.example"
SECRET = os.environ["RENTAL_SECRET"]  # openssl rand -hex 32

app = App(auth=[CustomJWT(issuer=ISSUER, secret=SECRET, algorithm="HS256")])
mail = app.workpool("mail", max_parallelism=5)


class Rental(UserTable, source="rental", key="id", managed=False):
    id: int
    bike_id: int
    renter: str
    returned_at: datetime | None

    by_renter = Index("renter")


@app.internal_action
async def confirm(ctx: ActionCtx, renter: str, bike: int) -> str:
    return f"To {renter}: bike {bike} is yours."


@app.reactive_task(Rental, filter=lambda row: ~is_none(row.returned_at))
async def bill(ctx: TaskCtx[Rental]) -> None:
    """Run once for each bike that is back, whichever program wrote the row."""
    rental = await ctx.get_document()
    print(f"To {rental.renter}: the bill for bike {rental.bike_id}.")


@app.query(access=signed_in)
async def mine(ctx: QueryCtx) -> list[Rental]:
    user = await ctx.auth.require()
    return await ctx.db.query(Rental).with_index(Rental.by_renter, renter=user.subject).take(100)
