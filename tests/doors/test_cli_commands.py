"""The commands that ask and return: run, functions, migrate, data, pools, config, crons."""

from __future__ import annotations

import re

import pytest
from doors.cli_fixtures import Console

# ----- run


def test_run_takes_arguments_in_every_way_and_prints_the_result(console: Console) -> None:
    console.write_bookings()
    for arguments, what, fix in (
        (("bok",), "The app has no function 'bok'.", "Did you mean bookings:book?"),
        (("zzz",), "The app has no function 'zzz'.", "See penstock functions."),
        (("book", "customer=Ada", "phone=1", "guests=many"), "guests: Input should be a valid integer", "It takes"),
        (("book", "customer=Ada", "phone=1", "extra=1"), "extra: Extra inputs are not permitted", "It takes"),
        (("book", "Ada"), "'Ada' is no argument.", "name=value"),
        (("book", '{"customer": '), "This is not valid JSON", ""),
    ):
        refused = console("run", *arguments)
        assert (refused.code, refused.out) == (1, "")
        assert what in refused.err
        assert fix in refused.err
    assert not list(console.folder.glob("*.db*")), "a call that cannot be has made a database"
    console.ok("migrate")
    booking = ""
    for name, arguments, stdin in (
        ("a", ("book", "customer=a", "phone=0049 30", "guests=2"), b""),
        ("b", ("bookings:book", '{"customer": "b", "phone": "0049 30", "guests": 2}'), b""),
        ("c", ("bookings:book", "customer=c", 'phone="0049 30"', "guests=2"), b""),
        ("d", ("book", "-"), b'{"customer": "d", "phone": "0049 30", "guests": {"$integer": "AgAAAAAAAAA="}}'),
    ):
        booking = console.ok("run", *arguments, stdin=stdin).json
        pretty = console.ok("run", "upcoming", f"customer={name}")
        assert pretty.out.startswith("[\n  {\n")
        row = pretty.json[0]
        assert (row["_id"], row["customer"], row["phone"], row["guests"]) == (booking, name, "0049 30", 2)
    assert console.ok("run", "upcoming", "customer=a", "--json").out.count("\n") == 1
    assert console.ok("run", "remind", f"booking={booking}").out == "null\n"


def test_functions_are_listed_and_named_by_what_makes_them_unique(console: Console) -> None:
    console.write_bookings()
    lines = console.ok("functions").out.splitlines()
    assert lines[0].split() == ["function", "kind", "access", "signature"]
    signature = "(customer: str, phone: str, guests: int = 1) -> Id[Booking]"
    assert lines[1].split(maxsplit=3) == ["bookings:book", "mutation", "-", signature]
    listed = {function["name"]: function for function in console.ok("functions", "--json").json}
    assert listed["bookings:remind"]["visibility"] == "internal"
    assert listed["bookings:book"]["access"] is None
    assert listed["bookings:book"]["parameters"][2] == {"name": "guests", "type": "int", "required": False}

    console.write("shop/__init__.py", "")
    console.write("shop/base.py", "from penstock import App\napp = App()\n")
    for name in ("one", "two"):
        console.write(
            f"shop/{name}.py",
            "from penstock import QueryCtx\nfrom shop.base import app\n"
            f"@app.query\nasync def hello(ctx: QueryCtx) -> str:\n    return '{name}'\n",
        )
    console.write("shop/main.py", "from shop import one, two\nfrom shop.base import app\n")
    refused = console("--app", "shop.main", "run", "hello")
    assert (refused.code, "may be shop.one:hello or shop.two:hello" in refused.err) == (1, True)
    console.ok("--app", "shop.main", "migrate")
    assert console.ok("--app", "shop.main", "run", "two:hello").json == "two"


# ----- data


def test_data_shows_rows_that_meet_conditions(console: Console) -> None:
    console.write_bookings()
    console.ok("migrate")
    rows = "".join(f'{{"customer": "c{number}", "phone": "1"}}\n' for number in range(3))
    console.ok("import", "booking", "-", stdin=rows.encode())
    for where, found in (
        (("customer=c1",), ["c1"]),
        (("customer>=c1",), ["c2", "c1"]),
        (("customer>c0", "customer<c2"), ["c1"]),
        (("guests<=1",), ["c2", "c1", "c0"]),
        (("note=null",), ["c2", "c1", "c0"]),
    ):
        conditions = [part for condition in where for part in ("--where", condition)]
        shown = console.ok("data", "booking", "--json", *conditions).json
        assert [row["customer"] for row in shown] == found, where
    for condition, why in (
        ("nonsense", "'nonsense' is no condition."),
        ("x=1", "Table Booking has no column 'x'."),
        ("guests=many", "'many' is not a value of booking.guests, which is integer."),
        ("status=lost", "which is pending or paid."),
    ):
        refused = console("data", "booking", "--where", condition)
        assert (refused.code, why in refused.err) == (1, True)


# ----- pools

GATED = """
from datetime import timedelta

from penstock import ActionCtx, App, FixedWindow, TokenBucket

app = App()
minute, day = timedelta(minutes=1), timedelta(days=1)
plain = app.workpool("plain", max_parallelism=7)
tenants = app.workpool("tenants", max_parallelism=20, key_parallelism=2, group="outside")
api = app.workpool(
    "api",
    rate_limit=TokenBucket(rate=600, period=minute, capacity=20),
    key_rate_limit=FixedWindow(rate=1000, period=day),
    group="outside",
)
hooks = app.workpool("hooks", rate_limit=FixedWindow(rate=5, period=timedelta(seconds=90), capacity=9))


@app.action
async def fill(ctx: ActionCtx) -> None:
    for tenant, count in (("acme", 3), ("globex", 5), ("initech", 1)):
        pool = tenants.with_options(concurrency_key=tenant)
        await pool.enqueue_batch(ctx, say, [{}] * count)
    await hooks.enqueue_batch(ctx, say, [{}] * 1200)
    await plain.enqueue(ctx, say)


@app.internal_action
async def say(ctx: ActionCtx) -> None: ...
"""


_LIMIT = ("pools", "set", "plain", "--max-parallelism")


def test_pools_are_listed_with_their_gates_and_limited(console: Console) -> None:
    console.write_bookings()
    console.ok("migrate")
    assert console.ok("pools").out == "no pools\n"
    console.enter("gated")
    console.write("gated.py", GATED)
    console.ok("migrate")
    assert console.ok("pools", "--keys", "2").err == "No jobs wait at any gate.\n"
    console.ok("run", "fill")
    rows = {row["name"]: row for row in console.ok("pools", "--json").json["pools"]}
    assert [rows["tenants"][word] for word in ("ready", "waiting", "key_parallelism", "group")] == [9, 9, 2, "outside"]
    assert rows["api"]["rate_limit"] == {"kind": "TokenBucket", "rate": 600, "period": "PT1M", "capacity": 20}
    assert rows["api"]["key_rate_limit"]["start"] == "1970-01-01T00:00:00Z"
    assert "keys" not in rows["api"]
    counts, limits = console.ok("pools").out.split("\n\n")
    assert counts.splitlines()[-1].split() == ["tenants", "20", "0", "9", "9", "0", "0"]
    assert [line.split("  ") for line in map(squeezed, limits.splitlines())] == [
        ["pool", "limit of a key", "rate limit", "rate limit of a key", "group"],
        ["api", "-", "600 per min, burst 20", "1,000 in each day", "outside"],
        ["hooks", "-", "5 in each 90 s, up to 9", "-", "-"],
        ["tenants", "2", "-", "-", "outside"],
    ]
    keys = console.ok("pools", "--keys", "1").out.split("\n\n")[-1]
    assert [line.split() for line in keys.splitlines()] == [
        ["pool", "key", "waiting", "running"],
        ["hooks", "-", "1,000+", "0"],
        ["tenants", "globex", "5", "0"],
    ]

    console.ok("pause", "plain")
    console.ok("pools", "set", "api", "--max-parallelism", "2000")
    lines = [line.split() for line in console.ok("pools").out.split("\n\n")[0].splitlines()]
    assert ["plain", "7,", "paused", "0", "1", "0", "0", "0"] in lines
    assert ["api", "2,000", "(declared", "10)", "0", "0", "0", "0", "0"] in lines
    assert "plain runs at most 0 jobs at once, once it is resumed." in console.ok(*_LIMIT, "0").err
    assert "but its limit is 0. Raise it with: penstock pools set plain --max-par" in console.ok("resume", "plain").err
    assert console(*_LIMIT, "99999999999").code == 2
    assert "The database knows no pool 'mail'." in console("pause", "mail").err


def squeezed(line: str) -> str:
    """A line of a table, with two spaces between its columns."""
    return re.sub(r" {2,}", "  ", line.strip())


# ----- config


def test_config_tells_where_each_setting_comes_from(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.write("app.py", "from penstock import App\napp = App(grace=3.0, poll=9.0)\n")
    console.write("penstock.toml", "lease = 60")
    monkeypatch.setenv("PENSTOCK_THREADS", "5")
    found = console.ok("config", "--json", "--database", "postgresql://me:secret@host/x").json
    assert found["lease"] == {"value": 60.0, "source": str(console.folder / "penstock.toml")}
    assert found["threads"] == {"value": 5, "source": "PENSTOCK_THREADS"}
    assert found["grace"] == {"value": 3.0, "source": "App(…)"}
    assert found["max_calls"]["source"] == "default"
    assert found["database"] == {"value": "postgresql://me:***@host/x", "source": "--database"}
    monkeypatch.setenv("PENSTOCK_DIRECT_DATABASE", "postgresql://me:secret@direct/x")
    for name in ("ADMIN_TOKEN", "METRICS_TOKEN"):
        monkeypatch.setenv(f"PENSTOCK_{name}", "the-secret-of-the-house")
    assert "secret" not in console.ok("config", "--json").out + console.ok("config").out
    hidden = "sqlpassword=x&sslmode=require&PASSFILE=/x&sslpassword=a%26b&pass%77ord=&client_secret=s"
    shown = "sqlpassword=***&sslmode=require&PASSFILE=***&sslpassword=***&pass%77ord=***&client_secret=***"
    given = console.ok("config", "--json", "--database", f"postgresql://me:secret@host/x?{hidden}").json["database"]
    assert given["value"] == f"postgresql://me:***@host/x?{shown}"


# ----- crons

CRONS = """
from datetime import timedelta

from penstock import ActionCtx, App, MutationCtx

app = App()


@app.cron("30 9 * * *", timezone="Europe/Prague", name="report")
async def report(ctx: MutationCtx) -> None: ...


@app.cron(timedelta(hours=2), name="look")
async def look(ctx: ActionCtx) -> None: ...


@app.mutation
async def create(ctx: MutationCtx, name: str) -> None:
    await app.crons.create(ctx, name, timedelta(days=1), look)
"""


def test_crons_are_listed_run_paused_and_removed(console: Console) -> None:
    console.write("crons.py", CRONS)
    console.ok("migrate")
    console.ok("run", "create", "name=made")
    job = console.ok("crons", "run", "look").out.strip()
    rows = {row["name"]: row for row in console.ok("crons", "--json").json["crons"]}
    assert sorted(rows) == ["look", "made", "report"]
    assert (rows["look"]["job"], rows["look"]["state"]) == (job, "pending")
    assert (rows["report"]["schedule"], rows["report"]["timezone"]) == ("30 9 * * *", "Europe/Prague")
    console.ok("crons", "pause", "report")
    lines = [line.split() for line in console.ok("crons").out.splitlines()]
    assert ["report", "30", "9", "*", "*", "*", "Europe/Prague", "paused"] in lines
    assert ["made", "every", "day", "UTC"] in [line[:4] for line in lines]
    console.ok("crons", "remove", "made")
    assert "knows no cron 'made'" in console.ok("crons", "remove", "made").err
    for command, words in (
        ("remove report", "is declared by this program"),
        ("run look", f"A run of the cron 'look' is under way: {job}"),
        ("run made", "The database knows no cron 'made'."),
    ):
        refused = console("crons", *command.split())
        assert (refused.code, words in refused.err) == (1, True), refused
    console.write("crons.py", CRONS.replace('name="look"', 'name="other"'))
    console.ok("migrate")
    (line,) = [line for line in console.ok("crons").out.splitlines() if line.startswith("look")]
    assert "not of this program" in line
    console.ok("crons", "remove", "look")
