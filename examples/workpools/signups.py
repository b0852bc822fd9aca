"""Sign-up e-mails beside weather scraping: what is urgent does not wait behind what is plenty.

Each kind of work has a pool of its own, so that the forecasts of hundreds of cities do not hold up an e-mail that
somebody waits for. Run it with ``python signups.py``, on a SQLite file of its own, or on an empty database that
DATABASE_URL names.
"""

import asyncio
import os
import tempfile
import time

from penstock import ActionCtx, App, Id, MutationCtx, QueryCtx, Table, public

CITIES = [f"city {number}" for number in range(200)]

app = App()
emails = app.workpool("emails", max_parallelism=10)
scraping = app.workpool("scraping", max_parallelism=5)


class User(Table):
    email: str
    verification_sent: bool = False


class Forecast(Table):
    city: str
    degrees: int


@app.mutation(access=public)
async def sign_up(ctx: MutationCtx, email: str) -> Id[User]:
    user = await ctx.db.insert(User(email=email))
    await emails.enqueue(ctx, send_verification, user=user, email=email)  # committed with the user, or not at all
    return user


@app.mutation(access=public)
async def refresh_forecasts(ctx: MutationCtx) -> int:
    await scraping.enqueue_batch(ctx, scrape, [{"city": city} for city in CITIES])
    return len(CITIES)


@app.internal_action
async def send_verification(ctx: ActionCtx, user: Id[User], email: str) -> None:
    await asyncio.sleep(0.02)  # the mail server
    await ctx.run_mutation(verification_sent, user)


@app.internal_mutation
async def verification_sent(ctx: MutationCtx, user: Id[User]) -> None:
    await ctx.db.patch(User, user, verification_sent=True)


@app.internal_action
async def scrape(ctx: ActionCtx, city: str) -> None:
    await asyncio.sleep(0.05)  # a slow website
    await ctx.run_mutation(store_forecast, city, sum(city.encode()) % 40)


@app.internal_mutation
async def store_forecast(ctx: MutationCtx, city: str, degrees: int) -> None:
    await ctx.db.insert(Forecast(city=city, degrees=degrees))


@app.query(access=public)
async def progress(ctx: QueryCtx) -> tuple[int, int]:
    """How many e-mails were sent, and how many forecasts are there."""
    sent = [user async for user in ctx.db.query(User) if user.verification_sent]
    return len(sent), await ctx.db.query(Forecast).count()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/signups.db"
        async with app.open(database, services=["worker"]) as backend:
            count = await backend.run_mutation(refresh_forecasts)
            print(f"{count} forecasts are to be scraped, 5 at a time. Now 20 people sign up.")
            began, people = time.monotonic(), 20
            for number in range(people):
                await backend.run_mutation(sign_up, f"user-{number}@example.com")
            while (await backend.run_query(progress))[0] < people:
                await asyncio.sleep(0.02)
            sent, scraped = await backend.run_query(progress)
            print(
                f"All {sent} e-mails were sent within {time.monotonic() - began:.1f} s; {scraped} forecasts are there."
            )
            while (await backend.run_query(progress))[1] < count:
                await asyncio.sleep(0.05)
            print(f"All {count} forecasts came within {time.monotonic() - began:.1f} s.")


if __name__ == "__main__":
    asyncio.run(main())
