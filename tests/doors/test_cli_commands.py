"""The commands that ask and return: run, functions, migrate, data, pools, config, crons."""

from __future__ import annotations

import pytest
from doors.cli_fixtures import Console
from programs.admin import on
from programs.everynoun import app, mail, send, texts

from penstock.testing import TestApp

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


@pytest.fixture
def yard(console: Console, monkeypatch: pytest.MonkeyPatch) -> Console:
    """A console on the database of a program with pools and a cron."""
    monkeypatch.setenv("PENSTOCK_APP", "programs.everynoun")
    console.ok("migrate")
    return console


def test_pools_are_listed_with_their_gates_and_limited(yard: Console) -> None:
    async def fill(test: TestApp) -> None:
        for key, count in (("acme", 3), ("globex", 5)):
            pool = texts.with_options(concurrency_key=key)
            await pool.enqueue_batch(test, send, [{"to": "good"}] * count)
        await mail.enqueue(test, send, to="good")

    assert yard.ok("pools", "--keys", "2").err == "No jobs wait at any gate.\n"
    on(app, f"sqlite:///{yard.folder / 'penstock.db'}", fill)
    rows = {row["name"]: row for row in yard.ok("pools", "--json").json["pools"]}
    assert rows["texts"]["rate_limit"] == {"kind": "TokenBucket", "rate": 600, "period": "PT1M", "capacity": 20}
    assert "keys" not in rows["texts"]
    counts, limits, keys = ([line.split() for line in part.splitlines()] for part in listed(yard, "--keys", "1"))
    assert ["texts", "5", "0", "8", "8", "0", "0"] in counts
    assert ["texts", "1", "600", "per", "min,", "burst", "20"] in [line[:7] for line in limits]
    assert keys == [["pool", "key", "waiting", "running"], ["texts", "globex", "5", "0"]]

    yard.ok("pause", "mail")
    yard.ok("pools", "set", "texts", "--max-parallelism", "2000")
    lines = [line.split() for line in listed(yard)[0].splitlines()]
    assert ["mail", "1,", "paused", "0", "1", "0", "0", "0"] in lines
    assert ["texts", "2,000", "(declared", "5)", "0", "8", "8", "0", "0"] in lines
    limit = ("pools", "set", "mail", "--max-parallelism")
    assert "mail runs at most 0 jobs at once, once it is resumed." in yard.ok(*limit, "0").err
    assert "but its limit is 0. Raise it with: penstock pools set mail --max-par" in yard.ok("resume", "mail").err
    assert yard(*limit, "99999999999").code == 2
    assert "The database knows no pool 'post'." in yard("pause", "post").err


def listed(yard: Console, *options: str) -> list[str]:
    return yard.ok("pools", *options).out.split("\n\n")


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


def test_crons_are_listed_and_what_cannot_be_done_is_refused(yard: Console) -> None:
    job = yard.ok("crons", "run", "remind").out.strip()
    (row,) = yard.ok("crons", "--json").json["crons"]
    assert (row["job"], row["state"], row["timezone"]) == (job, "pending", "Europe/Prague")
    yard.ok("crons", "pause", "remind")
    lines = [line.split()[:8] for line in yard.ok("crons").out.splitlines()]
    assert ["remind", "0", "9", "*", "*", "MON-FRI", "Europe/Prague", "paused"] in lines
    for command, words in (
        ("remove remind", "is declared by this program"),
        ("run remind", f"A run of the cron 'remind' is under way: {job}"),
        ("run made", "The database knows no cron 'made'."),
    ):
        refused = yard("crons", *command.split())
        assert (refused.code, words in refused.err) == (1, True), refused
