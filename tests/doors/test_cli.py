"""The command line by itself: its help, how it finds the app, and how it says what is wrong."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import click
import pytest
from doors.cli_fixtures import Console

from penstock.cli import main
from penstock.store.open import scheme_of

LONE = """from penstock import App, QueryCtx
app = App()
@app.query
async def hello(ctx: QueryCtx) -> str:
    return 'hi'
"""


# ----- help


def test_help_lists_every_command_and_imports_none_of_them(console: Console) -> None:
    listed = console.ok("--help").out
    code = "import sys; from penstock.cli.main import run; run(['--help']); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("pydantic", "rich", "asyncio", "penstock.app"):
        assert f"'{heavy}'" not in loaded
    for name, (module, _what) in main._COMMANDS.items():
        assert f"\n  {name} " in listed
        assert f"'{module.partition(':')[0]}'" not in loaded
        command = main.commands.get_command(click.Context(main.commands), name)
        assert isinstance(command, click.Command)
        assert command.name == name
        assert console.ok(name, "--help").out.startswith(f"Usage: penstock {name}")
        for one in command.params:
            assert not isinstance(one, click.Option) or one.hidden or one.help or name == "dev", (name, one.name)


def test_python_m_penstock_is_the_same(console: Console) -> None:
    assert console.ok("--version").out.startswith("penstock 0.")
    done = subprocess.run([sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("penstock 0.")


def test_misuse_ends_with_2(console: Console) -> None:
    for arguments in (("datum",), ("data", "--limit", "0"), ("--nonsense",), ("run",)):
        refused = console(*arguments)
        assert (refused.code, refused.out) == (2, "")
        assert "Usage: penstock" in refused.err
    assert "Did you mean 'data'?" in console("datum").err


# ----- where the app is

FOUND: tuple[tuple[dict[str, str], tuple[str, ...], str], ...] = (
    ({"app.py": LONE}, (), "app"),
    ({"app.py": f"import asyncio\nasync def main() -> None: ...\nasyncio.run(main())\n{LONE}"}, (), "app"),
    ({"any.py": LONE, "setup.py": "raise SystemExit", "x.py": "from flask import App\nx = App()"}, (), "any"),
    ({"shop/__init__.py": "", "shop/main.py": LONE}, (), "shop.main"),
    ({"a.py": LONE, "b.py": LONE}, ("--app", "b:app"), "b"),
    ({"src/shop/__init__.py": "", "src/shop/api.py": LONE}, ("--app", "src/shop/api.py"), "shop.api"),
    ({"a.py": LONE, "b.py": LONE, "penstock.toml": 'app = "b:app"'}, (), "b"),
    ({"a.py": LONE, "b.py": LONE, "pyproject.toml": '[tool.penstock]\napp = "b"'}, (), "b"),
    (
        {"a.py": LONE, "b.py": LONE, "penstock.toml": 'app = "b"', "pyproject.toml": '[tool.penstock]\napp = "a"'},
        (),
        "b",
    ),
)


def test_the_app_is_found(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (files, arguments, module) in enumerate(FOUND):
        console.enter(f"case{number}")
        for name, text in files.items():
            console.write(name, text)
        for words in (("functions", "--json", *arguments), (*arguments, "functions", "--json")):
            assert console.ok(*words).json[0]["name"] == f"{module}:hello", files
    monkeypatch.setenv("PENSTOCK_APP", "b")
    assert console.ok("functions", "--json", "--app", "a").json[0]["name"] == "a:hello"
    (console.folder / "penstock.toml").unlink()
    assert console.ok("functions", "--json").json[0]["name"] == "b:hello"


UNREAD = "The database URL cannot be read: its host or its port"
WRONG: tuple[tuple[dict[str, str], tuple[str, ...], str, str], ...] = (
    ({}, (), "There is no app in", "Name it: --app module:app"),
    ({"a.py": LONE, "b.py": LONE}, (), "There is more than one app in", "--app a"),
    ({"a.py": LONE + "second = App()\n"}, (), "a has more than one App.", "--app a:app or --app a:second"),
    ({"a.py": "x = 1"}, ("--app", "a"), "a has no App.", "Write app = App() in it"),
    ({"a.py": LONE}, ("--app", "a:nothing"), "The module a was found, but it has no nothing.", "--app a:app"),
    ({}, ("--app", "nowhere"), "There is no module 'nowhere' here.", "--app path/to/nowhere.py"),
    ({}, ("--app", ":app"), "':app' names no app.", "--app module:app"),
    ({"penstock.toml": "app = ["}, (), "penstock.toml cannot be read: Invalid value", ""),
    ({"a.py": LONE, "penstock.toml": "port = 5"}, (), "port is no setting.", "penstock serve --port."),
    ({"a.py": LONE}, ("--database", "sqlite:///no/such.db"), "There is no database no/such.db.", "penstock migrate"),
    (
        {"a.py": LONE},
        ("--database", "postgresql://nobody:hush@127.0.0.1:1/x"),
        "Cannot connect to",
        "Check that it runs",
    ),
    *(
        ({"a.py": LONE}, ("--database", url), what, fix)
        for url, what, fix in (
            ("sqlite://bob:hush@h/x.db", "The database URL names the host 'h', but", "Write three slash"),
            ("postgresql://u:hush@h:nan/x", UNREAD, "Use postgresql://"),
            ("postgresql://u:hu/hush@h/x", UNREAD, "Use postgresql://"),
            ("postgresql:///x?port=hush", UNREAD, "Use postgresql://"),
            ("postgresql+asyncpg://u:hush@h/x", "names the driver 'asyncpg'", "Drop the driver: postgre"),
            ("mysql://u:hush@h/x", "has the unknown scheme 'mysql'.", "Use sqlite:///file.db or postgresql"),
        )
    ),
)


def test_what_is_wrong_is_said_in_a_line(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_WAIT", "0.05")
    for number, (files, arguments, what, fix) in enumerate(WRONG):
        console.enter(f"case{number}")
        for name, text in files.items():
            console.write(name, text)
        refused = console("run", "hello", *arguments)
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith("error: ")
        assert what in refused.err.partition("\n")[0], refused.err
        assert fix in refused.err
        assert "hush" not in refused.err
        assert "Traceback" not in refused.err
        assert "Traceback" in console("run", "hello", "--log-level", "debug", *arguments).err
    assert scheme_of("postgresql://u:p@[::1]:5432,db.internal:5433,db/x?port=5432") == "postgresql"


# ----- programs that fail


def test_an_import_that_fails_shows_the_frames_of_the_program(console: Console) -> None:
    console.write("app.py", LONE + "import inner\n")
    console.write("inner.py", "def f():\n    import does_not_exist\nf()\n")
    failed = console("functions")
    assert failed.code == 1
    assert failed.err.startswith("Traceback (most recent call last):")
    assert failed.err.rstrip().endswith("ModuleNotFoundError: No module named 'does_not_exist'")
    files = [line.split('"')[1] for line in failed.err.splitlines() if line.startswith("  File")]
    assert [Path(file).name for file in files] == ["app.py", "inner.py", "inner.py"]
    console.write("app.py", LONE + "x = = 1\n")
    failed = console("functions")
    assert (failed.code, 'app.py", line 6' in failed.err, "cli" in failed.err) == (1, True, False)
    console.write("app.py", LONE + "@app.query\nasync def bad(ctx, x) -> str: ...\n")
    failed = console("functions")
    assert failed.code == 1
    assert failed.err.startswith("error: app:bad is public, and lacks an annotation of x")


def test_a_function_that_fails_shows_the_frames_of_the_program(bookings: Console) -> None:
    failed = bookings("run", "fail")
    assert failed.code == 1
    assert failed.err.splitlines()[-1] == "ValueError: ouch"
    assert failed.err.count("\n  File") == 2
    assert bookings("run", "fail", "--log-level", "debug").err.count("\n  File") > 4
    assert "{'reason': 'full'}" in bookings("run", "refuse").err
    as_json = json.loads(bookings("run", "refuse", "--json").err)["error"]
    assert (as_json["code"], as_json["data"]) == ("application", {"reason": "full"})


def test_a_function_runs_for_a_user_with_its_guard(console: Console) -> None:
    console.write(
        "club.py",
        LONE.replace("import App", "import App, signed_in")
        + """

@app.query(access=signed_in)
async def whoami(ctx: QueryCtx) -> str:
    return (await ctx.auth.require()).token_identifier
""",
    )
    console.ok("migrate")
    user = '{"issuer": "club", "subject": "ada"}'
    assert console.ok("run", "whoami", "--identity", user).out == '"club|ada"\n'
    assert "Name its issuer and subject." in console("run", "whoami", "--identity", '{"subject": "ada"}').err
    nobody = console("run", "whoami").err
    assert "Nobody has signed in." in nobody
    assert "--identity" in nobody


# ----- databases that cannot be used

USES = (
    ("data",),
    ("data", "booking"),
    ("export", "booking", "-o", "-"),
    ("import", "booking", "rows.jsonl"),
    ("run", "upcoming", "customer=Ada"),
    ("run", "book", "customer=Ada", "phone=1"),
    ("run", "refuse"),
)


def test_a_database_that_is_not_there_or_read_only_is_told(
    console: Console, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.write_bookings()
    for command in (("run", "upcoming", "customer=x"), ("migrate",)):
        failed = console(*command, "--database", urlsplit(postgres_url)._replace(path="/nowhere").geturl())
        assert failed.err.startswith("error: The database server refused the connection: database")
        assert "fix: Make the database with createdb nowhere, or check the database URL." in failed.err
        assert (failed.code, failed.out) == (1, "")

    async def freeze() -> None:
        connection = await asyncpg.connect(postgres_url)
        name = await connection.fetchval("select current_database()")
        await connection.execute(f"alter database {name} set default_transaction_read_only = on")
        await connection.close()

    asyncio.run(freeze())
    failed = console("migrate", "--database", postgres_url)
    assert failed.code == 1
    assert failed.err.startswith("error: ")
    assert "Traceback" not in failed.err


def test_a_file_is_made_or_changed_only_by_the_command_for_that(console: Console) -> None:
    console.write_bookings()
    console.write("rows.jsonl", '{"customer": "Ada", "phone": "1"}')
    for arguments in (*USES, ("jobs",)):
        failed = console(*arguments)
        assert (failed.code, "There is no database penstock.db." in failed.err) == (1, True)
        assert "penstock migrate" in failed.err
    console.ok("migrate", "--plan")
    assert [file.name for file in console.folder.iterdir() if "db" in file.name] == []
    other = console.folder / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("create table theirs (x)")
    before = other.read_bytes()
    for arguments in (("run", "upcoming", "customer=Ada"), ("import", "booking", "-")):
        failed = console(*arguments, "--database", "sqlite:///other.db")
        assert (failed.code, "lacks declarations" in failed.err) == (1, True)
    assert other.read_bytes() == before


def test_a_database_that_lacks_tables_is_explained_and_left_as_it_is(unmigrated: Console) -> None:
    short, whole = unmigrated.ok("migrate", "--plan").out, unmigrated.ok("migrate", "--plan", "--all").out
    assert "create table" in short.lower()
    assert ("ready_job" in short, "ready_job" in whole) == (False, True)
    assert len(short.splitlines()) < 40
    unmigrated.write("empty.py", "from penstock import App\napp = App()\n")
    unmigrated.write("rows.jsonl", '{"customer": "Ada", "phone": "1"}')
    unmigrated.ok("migrate", "--app", "empty")
    plan = unmigrated.ok("migrate", "--plan", "--json", "--app", "bookings").json
    assert plan["sql"]
    for arguments in USES:
        failed = unmigrated(*arguments, "--app", "bookings")
        assert (failed.code, failed.err.startswith("error: The database lacks declarations")) == (1, True), failed.err
        assert "penstock migrate --plan" in failed.err
    assert unmigrated.ok("migrate", "--plan", "--json", "--app", "bookings").json == plan


# ----- streams and signals


def test_a_reader_that_goes_away_is_no_error(bookings: Console) -> None:
    bookings.ok("import", "booking", "-", stdin=b'{"customer": "Ada", "phone": "1"}\n' * 3000)
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "export", "booking", "-o", "-"],
        cwd=bookings.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _out, err = process.communicate()
    assert (process.returncode, err) == (1, b"")


def test_logs_are_text_or_json(unmigrated: Console) -> None:
    bookings = unmigrated
    text = bookings.ok("migrate", "--log-level", "info").err
    assert " info    schema.applied migrations=" in text
    bookings.write_bookings(("note: str", "remark: str | None = None\n    note: str"))
    script = bookings.ok("migrate", "--plan").out.splitlines()
    assert all(line.endswith(";") or line.startswith("--") for line in script), "a plan is a script"
    lines = bookings.ok("migrate", "--log-level", "info", "--log-format", "json").err.splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert [event["event"] for event in events] == ["schema.changing", "schema.applied"]


CALLER = """
import logging

import httpx

from penstock import ActionCtx, App

app = App()


@app.action
async def call(ctx: ActionCtx) -> int:
    logging.getLogger("my.program").info("calling")
    transport = httpx.MockTransport(lambda request: httpx.Response(204))
    async with httpx.AsyncClient(transport=transport) as client:
        return (await client.get("https://example.org/?token=secret")).status_code
"""


def test_the_program_is_logged_and_what_its_libraries_do_is_not(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.write("app.py", CALLER)
    monkeypatch.setenv("PENSTOCK_LEESE", "5")
    told = console.ok("migrate").err
    assert told.count("config.unknown_variable variable=PENSTOCK_LEESE meant=PENSTOCK_LEASE") == 1
    assert "\x1b" not in told, "it is no terminal"
    for level in ("info", "debug"):
        called = console.ok("run", "call", "--log-level", level)
        assert called.json == 204
        assert "calling" in called.err
        assert "secret" not in called.err
