"""Export and import: nothing is lost on the way out and back, and what cannot be taken leaves no half."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from pydantic import Field

from penstock import Table
from penstock.cli.data import Documents
from penstock.cli.transfer import Lines
from penstock.clock import SystemClock
from penstock.errors import ConfigError, ValueInvalid
from penstock.schema.table import definition_of
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.statements import TableStatements
from penstock.store.sqlite.dialect import SQLITE

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)

KINDS = """
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from penstock import App, Id, MutationCtx, Table

app = App()


class Colour(Enum):
    RED = "red"


class Inner(BaseModel):
    count: int
    at: datetime


class Thing(Table):
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
    other: Id["Thing"] | None
    anything: Any
    inner: Inner | None = None
    listed: list[dict[str, int]] = []


@app.internal_mutation
async def fill(ctx: MutationCtx) -> None:
    plain = dict(
        text="", integer=0, real=0.0, boolean=False, data=b"", at=datetime(1970, 1, 1, tzinfo=UTC),
        day=date(1, 1, 1), span=timedelta(0), amount=Decimal(0), uuid=UUID(int=0), colour=Colour.RED, size=1,
        other=None, anything=None,
    )
    first = await ctx.db.insert(Thing(**plain))
    odd = plain | dict(
        text="a\\u2028\\n\\"\\\\ é 🙂", integer=2**63 - 1, real=0.0, boolean=True, data=bytes(range(256)),
        at=datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), day=date(9999, 12, 31),
        span=-timedelta(days=3, microseconds=1), amount=Decimal("-12345678901234567890.123456789"),
        uuid=UUID(int=2**128 - 1), size=2, other=first, inner=Inner(count=7, at=plain["at"]),
        anything={"$bytes": "no tag", "ä": [1, 1.5, None, True, {"$integer": 2**60}]}, listed=[{"a": 1}, {}],
    )
    await ctx.db.insert(Thing(**odd))
    await ctx.db.insert(Thing(**odd | dict(integer=-(2**63), real=float("inf"), span=timedelta(days=99_999_999))))
    await ctx.db.insert(Thing(**odd | dict(integer=2**53 + 1, real=float("-inf"), amount=Decimal("1E+30"))))
    await ctx.db.insert(Thing(**odd | dict(integer=-(2**53), real=0.1 + 0.2, amount=Decimal("0.10"))))
"""


def test_all_kinds_of_columns_survive_the_round_trip(
    console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    console.write("things.py", KINDS)
    console.ok("migrate")
    console.ok("run", "fill")
    first = console.ok("export", "thing", "--output", "-").out
    documents = [json.loads(line) for line in first.strip().split("\n")]
    assert len(documents) == 5
    assert list(documents[1])[:3] == ["_id", "_creationTime", "text"]
    assert documents[1]["data"] == {"$bytes": "".join(documents[1]["data"].values())}
    assert documents[1]["anything"]["$bytes"] == "no tag"
    assert documents[2]["integer"] == {"$integer": "AAAAAAAAAIA="}
    assert documents[2]["real"] == {"$float": "AAAAAAAA8H8="}

    console.write("things.jsonl", first)
    again = console.ok("import", "thing", "things.jsonl", "--replace", "--yes", "--json")
    assert again.json == {"table": "thing", "rows": 5, "deleted": 5}
    assert console.ok("export", "thing", "-o", "-").out == first


def test_a_table_goes_to_another_store_and_back(console: Console, sqlite_url: str, postgres_url: str) -> None:
    console.write("things.py", KINDS)
    for url in (sqlite_url, postgres_url):
        console.ok("migrate", "--database", url)
    console.ok("run", "fill", "--database", sqlite_url)
    first = console.ok("export", "thing", "-o", "-", "--database", sqlite_url).out
    console.ok("import", "thing", "-", "--database", postgres_url, stdin=first.encode())
    moved = console.ok("export", "thing", "-o", "-", "--database", postgres_url).out
    console.ok("import", "thing", "-", "--database", sqlite_url, "--replace", "-y", stdin=moved.encode())
    back = console.ok("export", "thing", "-o", "-", "--database", sqlite_url).out
    assert _compared(back) == _compared(moved) == _compared(first)


def _compared(lines: str) -> list[Any]:
    """Documents apart from what PostgreSQL keeps in a form of its own: 1E+30 in full, the keys of JSON in order."""
    documents = [json.loads(line) for line in lines.strip().split("\n")]
    return [document | {"amount": Decimal(document["amount"])} for document in documents]


def test_all_tables_go_to_a_folder_in_one_moment(bookings: Console) -> None:
    bookings.ok("run", "book", "customer=Ada", "phone=1")
    done = bookings.ok("export", "--output", "out/")
    assert "booking: 1 row → out/booking.jsonl" in done.err
    assert json.loads((bookings.folder / "out/booking.jsonl").read_text())["customer"] == "Ada"
    assert [file.name for file in (bookings.folder / "out").iterdir()] == ["booking.jsonl"]


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


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"garbage", "line 2: this is not valid JSON"),
        (b"[1]", "line 2: this is no JSON object, but [1]."),
        (b'{"customer": "Ada"}', "line 2: phone: Field required"),
        (b'{"customer": "Ada", "phone": "1", "x": 1}', "line 2: x: Extra inputs are not permitted"),
        (b'{"_id": "user_1", "customer": "Ada", "phone": "1"}', "line 2: _id: 'user_1' is not an id of table booking"),
        (b'{"_creationTime": "now", "customer": "Ada", "phone": "1"}', "line 2: _creationTime: 'now' is no number"),
        (b'{"customer": "Ada", "phone": "1", "guests": {"$integer": "x"}}', "line 2: The content of $integer"),
        (b'{"customer": "Ada\\u0000", "phone": "1"}', "line 2: booking.customer contains a NUL"),
        (b'{"customer": "Ada", "phone": "1", "status": "?"}', "line 2: status: Input should be 'pending' or 'paid'"),
        (b'{"customer": "\xff", "phone": "1"}', "line 2: this is not valid JSON"),
        (b'{"customer": "' + b"x" * 3000 + b'", "phone": "1"}', "line 2: Table booking: a value of 3000 bytes is too"),
        (b'{"customer": "Ada", "phone": "' + b"x" * 2_000_000 + b'"}', "line 2: Table booking: a row of 2000"),
    ],
)
def test_each_kind_of_bad_line(console: Console, line: bytes, why: str) -> None:
    console.write_bookings()
    console.ok("migrate")
    refused = console("import", "booking", "-", stdin=b'{"customer": "Ada", "phone": "1"}\n' + line + b"\n")
    assert refused.code == 1
    said, fix = refused.err.rstrip().rsplit("\n", 1)
    assert why in said
    assert said.endswith("Nothing was imported.")
    assert fix == "  fix: Correct the line, and import again."
    assert console.ok("data", "--json").json[0]["rows"] == 0


def test_a_row_that_is_there_already_is_named(bookings: Console) -> None:
    row = bookings.ok("run", "book", "customer=Ada", "phone=1").json
    given = json.dumps({"_id": row, "customer": "Eve", "phone": "2"}).encode()
    other = b'{"customer": "Bob", "phone": "3"}\n'
    refused = bookings("import", "booking", "-", "--append", "--json", stdin=other * 3 + given)
    assert refused.code == 1
    error = json.loads(refused.err)["error"]
    assert (error["line"], error["imported"]) == (4, 0)
    assert "line 4: Table booking" in error["message"]
    assert [row["customer"] for row in bookings.ok("data", "booking", "--json").json] == ["Ada"]


def test_replace_changes_nothing_if_a_line_is_refused(bookings: Console) -> None:
    bookings.ok("run", "book", "customer=Ada", "phone=1")
    lines = b'{"customer": "Eve", "phone": "2"}\n' * 1200 + b"garbage\n"
    refused = bookings("import", "booking", "-", "--replace", "--yes", stdin=lines)
    assert "line 1,201" in refused.err
    assert [row["customer"] for row in bookings.ok("data", "booking", "--json").json] == ["Ada"]


def test_a_table_with_rows_is_not_touched_unasked(bookings: Console) -> None:
    bookings.ok("run", "book", "customer=Ada", "phone=1")
    line = b'{"customer": "Eve", "phone": "2"}'
    refused = bookings("import", "booking", "-", stdin=line)
    assert (refused.code, "booking has 1 row already" in refused.err) == (1, True)
    unasked = bookings("import", "booking", "-", "--replace", stdin=line)
    assert unasked.code == 1
    assert "error: Delete the only row of booking? There is no terminal to ask on." in unasked.err
    assert "fix: Confirm with --yes." in unasked.err
    both = bookings("import", "booking", "-", "--replace", "--append", stdin=line)
    assert both.code == 2
    bookings.ok("import", "booking", "-", "--append", stdin=b"\xef\xbb\xbf" + line)
    assert {row["customer"] for row in bookings.ok("data", "booking", "--json").json} == {"Ada", "Eve"}


def test_an_export_that_cannot_be(bookings: Console) -> None:
    assert bookings("export", "--output", "-").code == 2
    bookings.ok("migrate")
    missing = bookings("export", "bookin", "--output", "-")
    assert (missing.code, "Did you mean booking?" in missing.err) == (1, True)
    nowhere = bookings("export", "booking", "--output", "no/such/folder.jsonl")
    assert (nowhere.code, "cannot be written" in nowhere.err) == (1, True)
    unreadable = bookings("import", "booking", "nothing.jsonl")
    assert (unreadable.code, "nothing.jsonl cannot be read" in unreadable.err) == (1, True)


def test_a_replacement_that_must_begin_anew_reads_its_file_again(console: Console) -> None:
    class Stdin(io.BytesIO):
        def seekable(self) -> bool:
            return False

    documents = Documents(TableStatements(definition_of(Sample), SQLITE), SystemClock())
    file = console.write("empty.jsonl", "\n\n")
    with file.open("rb") as stream:
        lines = Lines(str(file), stream)
        assert [list(lines.pieces(documents)) for _attempt in range(2)] == [[], []]
        assert stream.tell() == lines.size == 2
    lines = Lines("-", Stdin(b"\n"))
    assert list(lines.pieces(documents)) == []
    with pytest.raises(ConfigError, match="stdin cannot be read again"):
        list(lines.pieces(documents))


# ----- user-owned tables


OWNED = """
from datetime import datetime
from decimal import Decimal

from penstock import App, Table

app = App()


class Order(Table, source="orders", key="order_id", managed=False):
    order_id: int
    at: datetime
    total: Decimal | None
    note: str | None = None


app = App(tables=[Order])
"""


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_user_owned_table_survives_the_round_trip(
    console: Console, store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue(f"{store}_url")
    monkeypatch.setenv("DATABASE_URL", url)
    console.write("orders.py", OWNED)
    if store == "sqlite":
        _sqlite(
            url,
            "create table orders (order_id integer primary key, at text, total text, note text default 'none')",
            "insert into orders values (7, '2026-01-01 10:00:00', '9.90', null), (8, '2026-01-01T10:00Z', null, 'x')",
        )
    else:
        _postgres(
            url,
            "create table orders (order_id bigint generated always as identity primary key, at timestamp, "
            "total numeric(10, 2), note text default 'none')",
            "insert into orders (at, total, note) values ('2026-01-01 10:00:00', 9.90, null), (now(), null, 'x')",
        )
    assert console.ok("data", "--json").json == [{"table": "orders", "rows": 2, "managed": False}]
    first = console.ok("export", "Order", "-o", "-").out
    assert json.loads(first.strip().split("\n")[0])["at"] == "2026-01-01T10:00:00Z"
    console.ok("migrate")
    console.ok("import", "orders", "-", "--replace", "--yes", stdin=first.encode())
    assert console.ok("export", "orders", "-o", "-").out == first


def test_rows_by_a_time_without_zone_are_exported_once(
    console: Console, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    console.write("orders.py", OWNED.replace('key="order_id"', 'key="at"'))
    _postgres(
        postgres_url,
        "create table orders (order_id bigint, at timestamp primary key, total numeric, note text)",
        "insert into orders select 1, at from generate_series('2026-01-01'::timestamp, '2026-01-02', '1 minute') at",
    )
    lines = console.ok("export", "Order", "-o", "-").out.splitlines()
    assert len({json.loads(line)["at"] for line in lines}) == len(lines) == 1441


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("how", ["--append", "--replace"])
def test_numbers_that_the_database_gives_go_on_after_imported_ones(
    console: Console, store: str, how: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue(f"{store}_url")
    monkeypatch.setenv("DATABASE_URL", url)
    console.write("orders.py", OWNED.replace('source="orders"', 'source="Our orders"'))
    number = "integer primary key" if store == "sqlite" else "serial primary key"
    run = _sqlite if store == "sqlite" else _postgres
    run(url, f'create table "Our orders" (order_id {number}, at timestamp, total numeric, note text)')
    lines = b"".join(b'{"order_id": %d, "at": "2026-01-01T10:00:00Z", "total": null}\n' % key for key in (7, 40, 9))
    imported = ("import", "Our orders", "-", how, "--yes")
    console.ok("migrate")
    console.ok(*imported, stdin=lines)
    run(url, """insert into "Our orders" (at, note) values ('2026-01-02 10:00:00', 'theirs')""")
    exported = [json.loads(line) for line in console.ok("export", "Our orders", "-o", "-").out.splitlines()]
    (theirs,) = (row["order_id"] for row in exported if row["note"] == "theirs")
    assert theirs > 40
    console.ok("import", "Our orders", "-", "--replace", "--yes", stdin=b"")
    run(url, """insert into "Our orders" (at, note) values ('2026-01-02 10:00:00', 'theirs')""")


def _sqlite(url: str, *statements: str) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def _postgres(url: str, *statements: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    asyncio.run(run())


# ----- documents by themselves


class Sample(Table):
    text: str
    integer: int
    real: float
    data: bytes
    at: datetime
    day: date
    span: timedelta
    amount: Decimal = Field(max_digits=10**9)
    uuid: UUID
    anything: Any


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)


def _times(first: int, last: int) -> st.SearchStrategy[datetime]:
    start, end = datetime(first, 1, 1, tzinfo=UTC), datetime(last, 1, 1, tzinfo=UTC)
    return st.timedeltas(timedelta(0), end - start).map(lambda passed: start + passed)


_SAMPLES = st.builds(
    Sample,
    text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    integer=st.integers(-(2**63), 2**63 - 1),
    real=st.floats(allow_nan=False),
    data=st.binary(),
    at=_times(2, 9998),
    day=st.dates(),
    span=st.timedeltas(timedelta(days=-100_000_000), timedelta(days=100_000_000)),
    amount=st.decimals(allow_nan=False, allow_infinity=False),
    uuid=st.uuids(),
    anything=_JSON,
)


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES], ids=lambda dialect: dialect.name)
@given(row=_SAMPLES, created=_times(1970, 2240))
def test_a_line_reads_back_as_the_row_it_was(dialect: Dialect, row: Sample, created: datetime) -> None:
    definition = definition_of(Sample)
    statements = TableStatements(definition, dialect)
    try:
        stored = statements.encode(definition.encode_row(row, "sample_00000000000000000000000000", created))
    except ValueInvalid:  # a number that the column would change, as minus zero
        reject()
    documents = Documents(statements, SystemClock())
    line = documents.line(stored)
    assert line.count(b"\n") == 1
    assert repr(documents.row(line)) == repr(stored)
