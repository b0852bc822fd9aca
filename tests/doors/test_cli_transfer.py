"""Export and import, also of what is encrypted: nothing is lost on the way, and what is refused leaves no half."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pytest
from cryptography.fernet import Fernet
from doors.cli_fixtures import Console
from pydantic import BaseModel, Field
from stage.databases import run_sql

from penstock import App, Id, MutationCtx, Table

app = App()


class Colour(Enum):
    RED = "red"


class Inner(BaseModel):
    count: int
    at: datetime


class Thing(Table, name="thing"):
    text: str
    integer: int
    real: float
    boolean: bool
    data: bytes
    at: datetime
    day: date
    span: timedelta
    amount: Decimal = Field(max_digits=40)
    uuid: UUID
    colour: Colour
    size: Literal[1, 2]
    other: Id[Thing] | None
    anything: Any
    inner: Inner | None = None
    listed: list[dict[str, int]] = Field(default_factory=list)


@app.internal_mutation
async def fill(ctx: MutationCtx) -> None:
    plain: dict[str, Any] = {
        "text": "", "integer": 0, "real": 0.0, "boolean": False, "data": b"", "at": datetime(1970, 1, 1, tzinfo=UTC),
        "day": date(1, 1, 1), "span": timedelta(0), "amount": Decimal(0), "uuid": UUID(int=0), "colour": Colour.RED,
        "size": 1, "other": None, "anything": None,
    }  # fmt: skip
    first = await ctx.db.insert(Thing(**plain))
    odd = plain | {
        "text": 'a\u2028\n"\\ é 🙂', "integer": 2**63 - 1, "boolean": True, "data": bytes(range(256)), "size": 2,
        "at": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), "day": date(9999, 12, 31), "other": first,
        "span": -timedelta(days=3, microseconds=1), "amount": Decimal("-12345678901234567890.123456789"),
        "uuid": UUID(int=2**128 - 1), "inner": Inner(count=7, at=plain["at"]), "listed": [{"a": 1}, {}],
        "anything": {"$bytes": "no tag", "ä": [1, 1.5, None, True, {"$integer": 2**60}]},
    }  # fmt: skip
    long = timedelta(days=99_999_999)
    await ctx.db.insert(Thing(**odd))
    await ctx.db.insert(Thing(**odd | {"integer": -(2**63), "real": float("inf"), "span": long}))
    await ctx.db.insert(Thing(**odd | {"integer": 2**53 + 1, "real": float("-inf"), "amount": Decimal("1E+30")}))
    await ctx.db.insert(Thing(**odd | {"integer": -(2**53), "real": 0.1 + 0.2, "amount": Decimal("0.10")}))


def test_all_kinds_of_columns_go_to_another_store_and_back(
    console: Console, sqlite_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_APP", f"{__name__}:app")
    for url in (sqlite_url, postgres_url):
        console.ok("migrate", "--database", url)
    console.ok("run", "fill", "--database", sqlite_url)
    first = console.ok("export", "thing", "-o", "-", "--database", sqlite_url).out
    documents = [json.loads(line) for line in first.strip().split("\n")]
    assert len(documents) == 5
    assert list(documents[1])[:3] == ["_id", "_creationTime", "text"]
    assert documents[1]["anything"]["$bytes"] == "no tag"
    console.ok("import", "thing", "-", "--database", postgres_url, stdin=first.encode())
    moved = console.ok("export", "thing", "-o", "-", "--database", postgres_url).out
    replace = ("import", "thing", "-", "--database", sqlite_url, "--replace", "-y", "--json")
    assert console.ok(*replace, stdin=moved.encode()).json == {"table": "thing", "rows": 5, "deleted": 5}
    back = console.ok("export", "thing", "-o", "-", "--database", sqlite_url).out
    assert _compared(back) == _compared(moved) == _compared(first)


def _compared(lines: str) -> list[Any]:
    """Documents apart from what PostgreSQL keeps in a form of its own: 1E+30 in full, the keys of JSON in order."""
    documents = [json.loads(line) for line in lines.strip().split("\n")]
    return [document | {"amount": Decimal(document["amount"])} for document in documents]


def test_more_rows_than_a_transaction_may_write(bookings: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_MAX_ROWS_WRITTEN", "1500")
    lines = b"".join(b'{"customer": "c%d", "phone": "%d"}\n' % (n, n) for n in range(3_001))
    done = bookings.ok("import", "Booking", "-", stdin=lines)
    assert "3,001 rows imported" in done.err
    first = bookings.ok("export", "booking", "--output", "-").out
    assert first.count("\n") == 3_001
    bookings.write("b.jsonl", first)
    bookings.ok("import", "booking", "b.jsonl", "--replace", "--yes")
    assert bookings.ok("export", "booking", "--output", "-").out == first


# ----- what cannot be taken


def test_a_bad_line_is_named_and_nothing_of_its_piece_is_stored(bookings: Console) -> None:
    good = b'{"customer": "Ada", "phone": "1"}\n'
    lines = good * 1500 + b'\n{"customer": "Ada", "phone": 1}\n' + good
    refused = bookings("import", "booking", "-", stdin=lines)
    assert refused.code == 1
    assert "line 1,502: phone: Input should be a valid string" in refused.err
    assert "1,000 rows are in, up to line 1,000" in refused.err
    assert refused.err.rstrip().endswith(
        "fix: Correct the line, then go on: tail -n +1001 FILE | penstock import TABLE - --append"
    )
    assert bookings.ok("data", "--json").json == [{"table": "booking", "rows": 1000, "managed": True}]


def test_each_kind_of_bad_line(console: Console) -> None:
    console.write_bookings()
    console.ok("migrate")
    for line, why in (
        (b"garbage", "line 2: this is not valid JSON"),
        (b'{"customer": "Ada"}', "line 2: phone: Field required"),
        (b'{"_id": "user_1", "customer": "A", "phone": "1"}', "line 2: _id: 'user_1' is not an id of table booking"),
        (b'{"customer": "Ada", "phone": "1", "guests": {"$integer": "x"}}', "line 2: The content of $integer"),
        (b'{"customer": "Ada\\u0000", "phone": "1"}', "line 2: booking.customer contains a NUL"),
        (b'{"customer": "\xff", "phone": "1"}', "line 2: this is not valid JSON"),
        (b'{"customer": "' + b"x" * 3000 + b'", "phone": "1"}', "line 2: Table booking: a value of 3000 bytes is too"),
        (b'{"customer": "Ada", "phone": "' + b"x" * 2_000_000 + b'"}', "line 2: Table booking: a row of 2000"),
    ):
        refused = console("import", "booking", "-", stdin=b'{"customer": "Ada", "phone": "1"}\n' + line + b"\n")
        assert refused.code == 1
        said, fix = refused.err.rstrip().rsplit("\n", 1)
        assert why in said
        assert said.endswith("Nothing was imported.")
        assert fix == "  fix: Correct the line, and import again."
    assert console.ok("data", "--json").json[0]["rows"] == 0


def test_a_table_with_rows_is_not_touched_unasked(bookings: Console) -> None:
    row = bookings.ok("run", "book", "customer=Ada", "phone=1").json
    line = b'{"customer": "Eve", "phone": "2"}'
    refused = bookings("import", "booking", "-", stdin=line)
    assert (refused.code, "booking has 1 row already" in refused.err) == (1, True)
    unasked = bookings("import", "booking", "-", "--replace", stdin=line)
    assert unasked.code == 1
    assert "error: Delete the only row of booking? There is no terminal to ask on." in unasked.err
    assert "fix: Confirm with --yes." in unasked.err
    assert bookings("import", "booking", "-", "--replace", "--append", stdin=line).code == 2
    bad = (line + b"\n") * 1200 + b"garbage\n"
    assert "line 1,201" in bookings("import", "booking", "-", "--replace", "--yes", stdin=bad).err
    same = json.dumps({"_id": row, "customer": "Eve", "phone": "2"}).encode()
    refused = bookings("import", "booking", "-", "--append", "--json", stdin=(line + b"\n") * 3 + same)
    assert refused.code == 1
    error = json.loads(refused.err)["error"]
    assert (error["line"], error["imported"]) == (4, 0)
    assert "line 4: Table booking" in error["message"]
    assert [row["customer"] for row in bookings.ok("data", "booking", "--json").json] == ["Ada"]
    bookings.ok("import", "booking", "-", "--append", stdin=b"\xef\xbb\xbf" + line)
    assert {row["customer"] for row in bookings.ok("data", "booking", "--json").json} == {"Ada", "Eve"}


def test_files_and_tables_that_are_not_there_are_named(bookings: Console) -> None:
    bookings.ok("run", "book", "customer=Ada", "phone=1")
    done = bookings.ok("export", "--output", "out/")
    assert "booking: 1 row → out/booking.jsonl" in done.err
    assert json.loads((bookings.folder / "out/booking.jsonl").read_text())["customer"] == "Ada"
    assert [file.name for file in (bookings.folder / "out").iterdir()] == ["booking.jsonl"]
    assert bookings("export", "--output", "-").code == 2
    for command, said in (
        (("export", "bookin", "--output", "-"), "Did you mean booking?"),
        (("export", "booking", "--output", "no/such/folder.jsonl"), "cannot be written"),
        (("import", "booking", "nothing.jsonl"), "nothing.jsonl cannot be read"),
    ):
        refused = bookings(*command)
        assert (refused.code, said in refused.err) == (1, True)


# ----- user-owned tables


OWNED = """
from datetime import datetime
from decimal import Decimal

from penstock import App, Table

class Order(Table, source="Our orders", key="order_id", managed=False):
    order_id: int
    at: datetime
    total: Decimal | None
    note: str | None = None


app = App(tables=[Order])
"""


TABLE = "create table \"Our orders\" (order_id {}, at {}, total {}, note text default 'none')"
KEYS = {"sqlite": "integer primary key", "postgr": "bigint generated always as identity primary key"}
TYPES = {"sqlite": ("text", "text"), "postgr": ("timestamp", "numeric(10, 2)")}
ROWS = (
    "insert into \"Our orders\" (at, total, note) values ('2026-01-01 10:00:00', 9.90, null), ('2026-02-01', null, 'x')"
)


def test_a_user_owned_table_survives_the_round_trip_with_its_numbers(shell: Console, database_url: str) -> None:
    shell.write("orders.py", OWNED)
    store = database_url[:6]
    asyncio.run(run_sql(database_url, TABLE.format(KEYS[store], *TYPES[store]), ROWS))
    assert shell.ok("data", "--json").json == [{"table": "Our orders", "rows": 2, "managed": False}]
    first = shell.ok("export", "Order", "-o", "-").out
    assert json.loads(first.strip().split("\n")[0])["at"] == "2026-01-01T10:00:00Z"
    shell.ok("migrate")
    shell.ok("import", "Our orders", "-", "--replace", "--yes", stdin=first.encode())
    assert shell.ok("export", "Our orders", "-o", "-").out == first
    theirs = "insert into \"Our orders\" (at, note) values ('2026-01-02 10:00:00', 'theirs')"
    for how, number in ("--append", 100), ("--replace", 40):
        keys = (number - 3, number, number - 1)
        lines = b"".join(b'{"order_id": %d, "at": "2026-01-01T10:00:00Z", "total": null}\n' % key for key in keys)
        shell.ok("import", "Our orders", "-", how, "--yes", stdin=lines)
        asyncio.run(run_sql(database_url, theirs))
        exported = [json.loads(line) for line in shell.ok("export", "Our orders", "-o", "-").out.splitlines()]
        (given,) = (row["order_id"] for row in exported if row["note"] == "theirs")
        assert given > number, how
    shell.ok("import", "Our orders", "-", "--replace", "--yes", stdin=b"")
    asyncio.run(run_sql(database_url, theirs))


# ----- what is encrypted

PROGRAM = """
import os
from datetime import timedelta

from penstock import ActionCtx, App, Encrypted, FernetCodec, MutationCtx, QueryCtx, Table

app = App(codec=FernetCodec(*os.environ["KEYS"].split(",")) if "KEYS" in os.environ else None)


class Patient(Table):
    name: str
    phone: str
    notes: list[int | str] = []


@app.internal_mutation
async def admit(ctx: MutationCtx, phone: str) -> None:
    await ctx.db.insert(Patient(name="Ada", phone=phone, notes=[1, phone]))
    await ctx.scheduler.run_after(timedelta(days=1), call, phone)


@app.internal_query
async def phones(ctx: QueryCtx) -> list[list[int | str]]:
    return [[one.phone, *one.notes] for one in await ctx.db.query(Patient).take(5)]


@app.internal_action
async def call(ctx: ActionCtx, phone: str) -> None:
    raise ValueError
"""
ENCRYPTED = PROGRAM.replace("phone: str\n", "phone: Encrypted[str]\n").replace(
    "notes: list[int | str]", "notes: Encrypted[list[int | str]]"
)


def test_ciphertext_is_shown_travels_and_comes_back(shell: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    monkeypatch.setenv("KEYS", old)
    shell.write("clinic.py", ENCRYPTED)
    shell.ok("migrate")
    shell.ok("run", "admit", "phone=gentian")
    assert shell.ok("run", "phones", "--json").json == [["gentian", 1, "gentian"]]
    shown = shell.ok("jobs", "--json").json["jobs"]
    assert shown[0]["args"] == {"phone": "gentian"}
    (row,) = map(json.loads, shell.ok("data", "patient", "--jsonl").out.splitlines())
    assert row["name"] == "Ada"
    assert row["phone"].keys() == row["notes"].keys() == {"$encrypted"}
    shell.ok("export", "patient", "-o", "patients.jsonl")
    assert json.loads(shell.folder.joinpath("patients.jsonl").read_text()) == row
    shell.ok("import", "patient", "patients.jsonl", "--replace", "-y")
    assert json.loads(shell.ok("data", "patient", "--jsonl").out) == row
    shell.write("plain.jsonl", json.dumps(row | {"phone": "lobelia", "notes": ["7", 7]}))
    shell.ok("import", "patient", "plain.jsonl", "--replace", "-y")
    assert shell.ok("run", "phones", "--json").json == [["lobelia", "7", 7]]
    assert "lobelia" not in shell.ok("data", "patient", "--jsonl").out
    assert "encrypted" in shell("data", "patient", "--where", "phone=lobelia").err
    monkeypatch.setenv("KEYS", new)
    refused = shell("import", "patient", "patients.jsonl", "--replace", "-y")
    assert "no key of the codec fits" in refused.err
    assert "gentian" not in shell.ok("jobs").out + shell.ok("jobs", "--json").out
    assert '"$encrypted"' in shell.ok("jobs", "show", shown[0]["id"]).out
    monkeypatch.delenv("KEYS")
    assert "no codec to encrypt patient.phone, patient.notes" in shell("migrate").err


def test_a_mark_on_a_column_with_values_is_refused(shell: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", Fernet.generate_key().decode())
    shell.write("clinic.py", PROGRAM)
    shell.ok("migrate")
    shell.ok("run", "admit", "phone=gentian")
    shell.write("clinic.py", ENCRYPTED)
    refused = shell("migrate")
    assert "patient.phone is declared as" in refused.err + refused.out
    assert "SQL can neither encrypt nor decrypt phone" in shell("migration", "new", "mark").err
