"""Functions, data and live queries on the dashboard, without a browser: numbers, rights, secrets, the write door."""

from __future__ import annotations

import asyncio
import html
import json
import re
from contextlib import aclosing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Literal

from doors.board_fixtures import board
from pydantic import BaseModel, Field, PlainSerializer, SecretStr
from stage import databases

from penstock import ActionCtx, App, Id, Index, MutationCtx, QueryCtx, Table, TaskCtx
from penstock.dashboard.forms import inputs_of, read_all
from penstock.observe.logbook import RAN
from penstock.schema.encoder import MASKED

Kept = Annotated[SecretStr, PlainSerializer(lambda secret: secret.get_secret_value())]

app, hall = App(), App(tables=[databases.Order])
mail = app.workpool("mail")
shipped: list[str] = []


class Colour(Enum):
    red = "r"
    blue = "b"


class Card(BaseModel):
    number: Kept
    holder: str = ""


class Booking(Table, name="booking_of_boards"):
    customer: str
    amount: int = Field(1, ge=0)
    price: Decimal = Decimal("1.5")
    starts_at: datetime
    status: Literal["pending", "paid"] = "pending"
    note: str | None = None
    vip: bool = False
    card: Card | None = None
    iban: Kept | None = None

    by_customer = Index("customer", "amount")


@hall.query
async def orders(ctx: QueryCtx) -> list[databases.Order]:
    return await ctx.db.query(databases.Order).take(9)


@app.reactive_task(Booking, filter=lambda booking: booking.status == "paid", watch=("status", "card"))
async def ship(ctx: TaskCtx[Booking]) -> None:
    shipped.append((await ctx.get_document()).customer)


@app.mutation
async def book(ctx: MutationCtx, customer: str, amount: int = 1, iban: SecretStr | None = None) -> Id[Booking]:
    return await ctx.db.insert(
        Booking(customer=customer, amount=amount, starts_at=ctx.now(), iban=iban, card=Card(number=SecretStr("4711")))
    )


@app.query
async def bookings(ctx: QueryCtx, customer: str, at: Colour = Colour.red, limit: int = 10) -> list[Booking]:
    return await ctx.db.query(Booking).with_index(Booking.by_customer, customer=customer).take(limit)


@app.internal_query
async def booking(ctx: QueryCtx, row: Id[Booking]) -> Booking | None:
    return await ctx.db.get(Booking, row)


@app.query
async def me(ctx: QueryCtx) -> str | None:
    identity = await ctx.auth.get_user_identity()
    return None if identity is None else identity.subject


@app.action
async def send(ctx: ActionCtx, to: str) -> str:
    raise ValueError(f"no mailbox {to}")


async def test_functions_tell_how_they_ran_and_where_their_time_went(database_url: str) -> None:
    async with board(app, database_url) as one:
        test = one.test
        for _ in range(3):
            await test.run_mutation(book, "Ada")
        await mail.enqueue(test, send, to="nobody")
        await test.run_until_idle(raise_errors=False)
        await test.engine.write_logbook()
        logbook = test.engine.store.logbook
        runs = [one.facts for one in await logbook.events(9, level=RAN, event="function.ran", words=[f" {book.name} "])]
        assert all(0 < run["database"] < run["all"] and not run["retries"] for run in runs)
        numbers = (await logbook.sums(test.clock.now() - timedelta(hours=1)))[f"function {send.name}"]
        assert sum(number for part, number in numbers.items() if part.startswith("lag ")) == 1
        listed = re.sub(r"<[^>]+>", " ", await one.see("/functions"))
        assert re.search(rf"{book.name}\s+mutation\s+public, not said\s+3\s+0\s+0\s", listed)
        assert re.search(rf"{send.name}\s+action\s+public, not said\s+1\s+1\s+0\s", listed)
        shown = await one.see(f"/functions/{send.name}")
        assert "no mailbox nobody" in shown
        assert "own code and the outside world" in shown
        await one.see("/functions/nothing:here", 404)


async def test_a_function_is_called_with_a_form_by_those_who_may() -> None:
    async with board(app) as one:
        await one.test.run_mutation(book, "Ada")
        path = f"/functions/{bookings.name}"
        found = await one.send(path, act="query", arg__customer="Ada", arg__at='"b"', arg__limit="5")
        assert '"customer": "Ada"' in html.unescape(found.text)
        wrong = await one.send(path, act="query", arg__customer="Ada", arg__limit="many")
        assert re.search(r'value="many"[^>]*aria-invalid="true"', html.unescape(wrong.text))
        assert "Input should be a valid integer" in wrong.text
        made = await one.send(f"/functions/{book.name}", act="call", arg__customer="Eve", arg__iban="DE42")
        assert "booking_of_boards_" in made.text
        failed = await one.send(f"/functions/{send.name}", act="call", arg__to="<b>")
        assert "no mailbox &lt;b&gt;" in failed.text
        assert "Traceback" in failed.text
        asked = await one.send(f"/functions/{me.name}", act="query", identity='{"issuer": "shop", "subject": "ada"}')
        assert '"ada"' in html.unescape(asked.text)
        async with aclosing(await one.signed_in("dashboard:look")) as looker:
            assert (await looker.post(path, data={"act": "query", "arg.customer": "Ada"})).status_code == 200
            refused = await looker.post(f"/functions/{book.name}", data={"act": "call", "arg.customer": "Ada"})
            assert refused.status_code == 403
            tried = await looker.post(f"/functions/{book.name}", data={"act": "query", "arg.customer": "Ada"})
            assert "is a mutation" in (await looker.get(tried.headers["location"].removeprefix("/dashboard"))).text
        assert len(await one.test.run_query(bookings, "Ada")) == 1
        acts = await one.test.engine.store.audit.list(20)
        assert "DE42" not in repr(acts)
        about = next(act.about for act in acts if act.act == "Function: call" and act.outcome == "It succeeded.")
        assert about == {"function": book.name, "arguments": {"customer": "Eve", "iban": MASKED}}


def test_inputs_fit_the_signature() -> None:
    async def every(
        ctx: QueryCtx, number: int, ratio: float | None, flag: bool, colour: Colour, day: date, tags: list[str],
        pin: str = "",
    ) -> None: ...  # fmt: skip

    every.__annotations__ |= {"colour": Colour}
    inputs = inputs_of(App().query(every), frozenset())
    assert [(one.name, one.shows, one.secret) for one in inputs] == [
        ("number", "number", False), ("ratio", "number", False), ("flag", "checkbox", False),
        ("colour", "select", False), ("day", "date", False), ("tags", "json", False), ("pin", "text", True),
    ]  # fmt: skip
    values, wrong = read_all(inputs, {f"arg.{one.name}": "" for one in inputs if one.shows != "checkbox"})
    assert (values, wrong) == ({"number": "", "ratio": None, "flag": False, "colour": "", "day": "", "tags": ""}, {})
    values, wrong = read_all(inputs, {"arg.pin": "1\r\n2", "arg.number": "7", "arg.flag": "true", "arg.tags": "["})
    assert values == {"pin": "1\n2", "number": 7, "flag": True}
    assert "no JSON" in wrong["tags"]


async def test_rows_are_filtered_and_read_page_by_page(database_url: str) -> None:
    async with board(app, database_url) as one:
        for number in range(110):
            await one.test.run_mutation(book, "Ada" if number % 2 else "Eve", number)
        path = "/data/booking_of_boards"
        assert re.search(r"booking_of_boards.*?>110<", await one.see("/data"), re.DOTALL)
        seen: list[str] = []
        query = 'field=amount&operator=>=&value=10&where=customer == "Ada"'
        while query:
            page = await one.see(f"{path}?{query}")
            seen += re.findall(r'<tr data-key="(booking_of_boards_\w+)"', page)
            query = next(iter(re.findall(r'href="\?([^"]+)">Next rows', page)), "")
        assert len(seen) == len(set(seen)) == 50
        assert seen == sorted(seen, reverse=True)
        shown = await one.see(f'{path}?where=amount == 7 and contains(customer, "d")&order=asc')
        assert len(re.findall(r"<tr data-key", shown)) == 1
        for query in ("where=amount ==", "field=amount&operator=~", "after=x", "field=no", "field=iban&value=D"):
            assert 'class="said bad"' in await one.see(f"{path}?{query}")
        await one.see("/data/unknown", 404)


async def test_rows_are_edited_through_the_write_door_by_those_who_may(database_url: str) -> None:
    async with board(app, database_url) as one:
        test = one.test
        row_id = await test.run_mutation(book, "Ada", iban=SecretStr("DE42"))
        await test.plan()
        path = f"/data/booking_of_boards/row?key={row_id}"
        shown = await one.see(path)
        assert not re.search("DE42|4711", shown)
        assert MASKED in shown
        form = {match[1]: match[2] for match in re.finditer(r'name="was\.(\w+)" value="([^"]*)"', shown)}
        assert (form["amount"], form["iban"], form["card"]) == ("1", "", "")
        before = {f"was__{name}": value for name, value in form.items()}
        same = {f"arg__{name}": value for name, value in form.items()}
        found = await one.send(path, act="edit", **before, **same)
        assert "Nothing%20was%20changed." in found.headers["set-cookie"]
        wrong = await one.send(path, act="edit", **before, **same | {"arg__amount": "-1"})
        assert "greater than or equal to 0" in wrong.text

        async with aclosing(test.live(booking, row_id)) as live:
            assert (await anext(live)) is not None
            changes = {"arg__status": '"paid"', "arg__vip": "true", "arg__starts_at": "2031-01-01T00:00:00Z"}
            assert (await one.send(path, act="edit", **before, **same | changes)).status_code == 303
            changed = await asyncio.wait_for(anext(live), 20)
        assert changed is not None
        assert (changed.status, changed.vip, changed.starts_at) == ("paid", True, datetime(2031, 1, 1, tzinfo=UTC))
        assert changed.iban == SecretStr("DE42")
        assert changed.card is not None
        assert changed.card.number == SecretStr("4711")
        await test.run_until_idle()
        assert shipped[-1:] == ["Ada"]  # the task saw it
        job = next(one for one in await test.jobs("success") if one.function.endswith(":ship"))
        assert "4711" in json.dumps(job.args)
        for shows in ("/work", f"/jobs/{job.id}", f"/tasks/row?task=ship&key={row_id}"):
            seen = await one.see(shows)
            assert "4711" not in seen, shows
            assert MASKED in seen or shows == "/work", "which shows the beginning"

        new = {"arg__customer": "Bob", "arg__starts_at": "2031-01-01T00:00:00Z", "arg__iban": "DE43"}
        made = await one.send("/data/booking_of_boards/new", act="insert", **new)
        assert made.headers["location"].startswith("/dashboard/data/booking_of_boards/row?key=booking_of_boards_")
        async with aclosing(await one.signed_in("dashboard:operate")) as operator:
            for act in ("edit", "delete"):
                assert (await operator.post(path, data={"act": act, "sure": "yes"})).status_code == 403
            assert (await operator.post("/data/booking_of_boards/new", data={"act": "insert"})).status_code == 403
            assert "Delete" not in (await operator.get(path)).text
        assert "Delete this row?" in (await one.send(path, act="delete")).text
        assert (await one.send(path, act="delete", sure="yes")).headers[
            "location"
        ] == "/dashboard/data/booking_of_boards"
        await one.see(path, 404)
        assert await test.run_query(booking, row_id) is None
        assert not re.search("DE4", repr(await test.engine.store.audit.list(20)))


async def test_rows_of_another_program_have_keys_of_several_columns(database_url: str) -> None:
    await databases.prepare(database_url, databases.ORDERS)
    async with board(hall, database_url) as one:
        made = await one.send("/data/orders/new", act="insert", arg__tenant="1", arg__number="A/7")
        path = made.headers["location"].removeprefix("/dashboard")
        assert path == "/data/orders/row?key=%5B1%2C+%22A%2F7%22%5D"
        assert (await one.send(path, act="edit", arg__amount="5")).status_code == 303
        (order,) = await one.test.run_query(orders)
        assert (order.tenant, order.number, order.amount) == (1, "A/7", 5)
        assert 'data-key="[1, "A/7"]"' in await one.see("/data/orders?where=amount == 5")
