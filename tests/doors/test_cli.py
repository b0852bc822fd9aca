"""The command line by itself: its help, how it finds the app, and how it says what is wrong."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import click
import pytest

from penstock.cli import main
from penstock.store.open import scheme_of

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)

LONE = """from penstock import App, QueryCtx
app = App()
@app.query
async def hello(ctx: QueryCtx) -> str:
    return 'hi'
"""


# ----- logs


@pytest.mark.parametrize(("level", "shown"), [("debug", ["w", "e"]), ("error", ["e"])])
def test_libraries_log_warnings_unless_the_level_is_higher(level: str, shown: list[str]) -> None:
    code = (
        "import logging; from penstock.cli.opening import set_up_logs\n"
        f"set_up_logs({level!r}, 'text'); log = logging.getLogger('uvicorn.error')\n"
        "log.info('i'), log.warning('w'), log.error('e')"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert [line.split()[-1] for line in told.splitlines()] == shown


# ----- help


def test_help_lists_every_command_and_imports_none_of_them(console: Console) -> None:
    listed = console.ok("--help").out
    code = "import sys; from penstock.cli.main import run; run(['--help']); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name, (module, _what) in main._COMMANDS.items():
        assert f"\n  {name} " in listed
        assert f"'{module.partition(':')[0]}'" not in loaded
    for heavy in ("pydantic", "rich", "asyncio", "penstock.app"):
        assert f"'{heavy}'" not in loaded


@pytest.mark.parametrize("name", main._COMMANDS)
def test_each_command_has_its_help(console: Console, name: str) -> None:
    shown = console.ok(name, "--help").out
    command = main.commands.get_command(click.Context(main.commands), name)
    assert isinstance(command, click.Command)
    assert command.name == name
    assert shown.startswith(f"Usage: penstock {name}")
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.hidden or parameter.help or name == "dev"


def test_the_version(console: Console) -> None:
    assert console.ok("--version").out.startswith("penstock 0.")


def test_python_m_penstock_is_the_same(console: Console) -> None:
    for module in ("penstock", "penstock.cli.main"):
        done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("penstock 0.")


def test_misuse_ends_with_2(console: Console) -> None:
    for arguments in (("datum",), ("data", "--limit", "0"), ("--nonsense",), ("run",)):
        refused = console(*arguments)
        assert (refused.code, refused.out) == (2, "")
        assert "Usage: penstock" in refused.err
    assert "Did you mean 'data'?" in console("datum").err


# ----- where the app is


@pytest.mark.parametrize(
    ("files", "arguments"),
    [
        ({"app.py": LONE}, ()),
        ({"main.py": LONE}, ()),
        ({"app.py": f"import asyncio\nasync def main() -> None: ...\nasyncio.run(main())\n{LONE}"}, ()),
        ({"anything.py": LONE, "setup.py": "raise SystemExit", "other.py": "from flask import App\nx = App()"}, ()),
        ({"app.py": LONE, "another.py": LONE}, ()),
        ({"shop/__init__.py": "", "shop/main.py": LONE}, ()),
        ({"shop/__init__.py": LONE}, ()),
        ({"anything.py": LONE, "another.py": LONE}, ("--app", "another")),
        ({"anything.py": LONE, "another.py": LONE}, ("--app", "another:app")),
        ({"deep/er/file.py": LONE}, ("--app", "deep/er/file.py")),
        ({"deep/er/file.py": LONE + "second = App()\n"}, ("--app", "deep/er/file.py:app")),
        ({"src/shop/__init__.py": "", "src/shop/api.py": LONE}, ("--app", "src/shop/api.py")),
        ({"src/shop/__init__.py": LONE}, ("--app", "src/shop/__init__.py")),
        ({"a.py": LONE, "b.py": LONE, "penstock.toml": 'app = "b:app"'}, ()),
        ({"a.py": LONE, "b.py": LONE, "pyproject.toml": '[tool.penstock]\napp = "b"'}, ()),
        (
            {"a.py": LONE, "b.py": LONE, "penstock.toml": 'app = "b"', "pyproject.toml": '[tool.penstock]\napp = "a"'},
            (),
        ),
    ],
)
def test_the_app_is_found(console: Console, files: dict[str, str], arguments: tuple[str, ...]) -> None:
    for name, text in files.items():
        console.write(name, text)
    console.ok("migrate", *arguments)
    assert console.ok("run", "hello", *arguments).out == '"hi"\n'
    assert console.ok(*arguments, "run", "hello").out == '"hi"\n'


def test_the_environment_names_the_app(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.write("a.py", LONE)
    console.write("b.py", LONE)
    monkeypatch.setenv("PENSTOCK_APP", "b")
    assert console.ok("functions", "--json").json[0]["name"] == "b:hello"
    assert console.ok("functions", "--json", "--app", "a").json[0]["name"] == "a:hello"


def test_a_module_is_named_as_its_package_would(console: Console) -> None:
    console.write("src/shop/__init__.py", "")
    console.write("src/shop/api.py", LONE)
    assert console.ok("functions", "--json", "--app", "src/shop/api.py").json[0]["name"] == "shop.api:hello"


@pytest.mark.parametrize(
    ("files", "arguments", "what", "fix"),
    [
        ({}, (), "There is no app in", "Name it: --app module:app"),
        ({"a.py": LONE, "b.py": LONE}, (), "There is more than one app in", "--app a"),
        ({"a.py": LONE + "second = App()\n"}, (), "a has more than one App.", "--app a:app or --app a:second"),
        ({"a.py": "x = 1"}, ("--app", "a"), "a has no App.", "Write app = App() in it"),
        ({"a.py": LONE}, ("--app", "a:nothing"), "The module a was found, but it has no nothing.", "--app a:app"),
        ({"a.py": LONE}, ("--app", "a:hello"), "The module a was found, but hello in it is no App.", "--app a:app"),
        ({}, ("--app", "nowhere"), "There is no module 'nowhere' here.", "--app path/to/nowhere.py"),
        ({}, ("--app", "no/where.py"), "no/where.py does not exist.", "existing file"),
        ({}, ("--app", ":app"), "':app' names no app.", "--app module:app"),
        ({"penstock.toml": "app = ["}, (), "penstock.toml cannot be read: Invalid value", ""),
        ({"pyproject.toml": "[tool.penstock]\napp = 5"}, (), "app must be text", ""),
        ({"a.py": LONE, "penstock.toml": "leese = 5"}, (), "leese is no setting.", "Did you mean lease?"),
        ({"a.py": LONE, "penstock.toml": "port = 5"}, (), "port is no setting.", "penstock serve --port."),
        ({"a.py": LONE, "penstock.toml": "lease = 'x'"}, (), "lease must be a number of seconds greater than 0", ""),
        ({"a.py": LONE}, ("--database", "oracle://x"), "the unknown scheme 'oracle'", "sqlite:///file.db"),
        (
            {"a.py": LONE},
            ("--database", "sqlite:///no/such.db"),
            "There is no database no/such.db.",
            "penstock migrate",
        ),
        ({"a.py": LONE}, ("--database", "sqlite:///a.py"), "not a sound SQLite database", ""),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    console: Console, files: dict[str, str], arguments: tuple[str, ...], what: str, fix: str
) -> None:
    for name, text in files.items():
        console.write(name, text)
    refused = console("run", "hello", *arguments)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: ")
    assert what in refused.err.partition("\n")[0]
    assert fix in refused.err
    assert "Traceback" not in refused.err

    as_json = console("run", "hello", "--json", *arguments)
    assert as_json.code == 1
    assert what in json.loads(as_json.err)["error"]["message"]

    with_traceback = console("run", "hello", "--log-level", "debug", *arguments)
    assert "Traceback" in with_traceback.err


# ----- programs that fail


def test_an_import_error_shows_the_frames_of_the_program(console: Console) -> None:
    console.write("app.py", LONE + "import inner\n")
    console.write("inner.py", "def f():\n    import does_not_exist\nf()\n")
    failed = console("functions")
    assert failed.code == 1
    assert failed.err.startswith("Traceback (most recent call last):")
    assert failed.err.rstrip().endswith("ModuleNotFoundError: No module named 'does_not_exist'")
    files = [line.split('"')[1] for line in failed.err.splitlines() if line.startswith("  File")]
    assert [Path(file).name for file in files] == ["app.py", "inner.py", "inner.py"]


def test_a_syntax_error_shows_its_place(console: Console) -> None:
    console.write("app.py", LONE + "x = = 1\n")
    failed = console("functions")
    assert failed.code == 1
    assert 'app.py", line 6' in failed.err
    assert "cli" not in failed.err


def test_a_wrong_declaration_is_named_with_its_place(console: Console) -> None:
    console.write("app.py", LONE + "@app.query\nasync def bad(ctx, x) -> str: ...\n")
    failed = console("functions")
    assert failed.code == 1
    assert failed.err.startswith("error: app:bad is public, and lacks an annotation of x")
    assert "app.py:6" in failed.err
    assert "Traceback" not in failed.err


def test_a_failing_function_shows_the_frames_of_the_program(bookings: Console) -> None:
    failed = bookings("run", "fail")
    assert failed.code == 1
    lines = failed.err.splitlines()
    assert lines[-1] == "ValueError: ouch"
    assert sum(line.startswith("  File") for line in lines) == 2
    whole = bookings("run", "fail", "--log-level", "debug")
    assert sum(line.startswith("  File") for line in whole.err.splitlines()) > 4
    as_json = json.loads(bookings("run", "fail", "--json").err)["error"]
    assert (as_json["code"], as_json["message"]) == ("program", "ValueError: ouch")


def test_an_application_error_is_said_with_its_data(bookings: Console) -> None:
    assert "{'reason': 'full'}" in bookings("run", "refuse").err
    as_json = json.loads(bookings("run", "refuse", "--json").err)["error"]
    assert (as_json["code"], as_json["data"]) == ("application", {"reason": "full"})


# ----- databases that cannot be used


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
    assert "This is not valid JSON" in console("run", "whoami", "--identity", "ada").err
    nobody = console("run", "whoami").err
    assert "Nobody has signed in." in nobody
    assert "--identity" in nobody


def test_a_database_that_cannot_be_reached(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.write("app.py", LONE)
    monkeypatch.setenv("PENSTOCK_DATABASE_WAIT", "0.05")
    failed = console("run", "hello", "--database", "postgresql://nobody:secret@127.0.0.1:1/x")
    assert failed.code == 1
    assert failed.err.startswith("error: Cannot connect to the database")
    assert "fix: Check that it runs" in failed.err
    assert "secret" not in failed.err


@pytest.mark.parametrize(
    ("url", "error", "fix"),
    [
        (
            "sqlite://bob:hush@h/x.db",
            "The database URL names the host 'h', but a SQLite database is a file.",
            "Write three slash",
        ),
        ("postgresql://u:hush@h:nan/x", "The database URL cannot be read: its host or its port", "Use postgresql://"),
        ("postgresql://u:hush@h:99999/x", "The database URL cannot be read: its host or its port", "Use postgresql://"),
        ("postgresql://u:hu/hush@h/x", "The database URL cannot be read: its host or its port", "Use postgresql://"),
        ("postgresql://u:hush@h,g:1:2/x", "The database URL cannot be read: its host or its port", "Use postgresql://"),
        ("postgresql://u:hush@[::1/x", "The database URL cannot be read: its host or its port", "Use postgresql://"),
        ("postgresql:///x?port=hush", "The database URL cannot be read: its host or its port", "Use postgresql://"),
        ("postgresql+asyncpg://u:hush@h/x", "The database URL names the driver 'asyncpg'", "Drop the driver: postgre"),
        ("postgres+psycopg2://u:hush@h/x", "The database URL names the driver 'psycopg2'", "Drop the driver: postgres"),
        ("sqlite+aiosqlite:///x.db", "The database URL names the driver 'aiosqlite'", "Drop the driver: sqlite://"),
        (
            "mysql://u:hush@h/x",
            "The database URL has the unknown scheme 'mysql'.",
            "Use sqlite:///file.db or postgresql",
        ),
    ],
)
@pytest.mark.parametrize("command", [("run", "hello"), ("migrate",)])
def test_a_database_url_that_cannot_be_is_refused_without_its_password(
    console: Console, command: tuple[str, ...], url: str, error: str, fix: str
) -> None:
    console.write("app.py", LONE)
    failed = console(*command, "--database", url)
    assert failed.code == 1
    assert failed.err.startswith(f"error: {error}")
    assert f"fix: {fix}" in failed.err
    assert "hush" not in failed.err
    assert "Traceback" not in failed.err


def test_hosts_of_a_cluster_each_have_their_port() -> None:
    assert scheme_of("postgresql://u:p@[::1]:5432,db.internal:5433,db/x?port=5432") == "postgresql"


def test_a_database_that_was_never_made_is_told_with_the_command_that_makes_it(
    console: Console, postgres_url: str
) -> None:
    console.write("app.py", LONE)
    for command in (("run", "hello"), ("migrate",)):
        failed = console(*command, "--database", urlsplit(postgres_url)._replace(path="/nowhere").geturl())
        assert failed.err.startswith("error: The database server refused the connection: database")
        assert "fix: Make the database with createdb nowhere, or check the database URL." in failed.err
        assert (failed.code, failed.out) == (1, "")


def test_a_database_that_is_read_only(console: Console, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def freeze() -> None:
        connection = await asyncpg.connect(postgres_url)
        name = await connection.fetchval("select current_database()")
        await connection.execute(f"alter database {name} set default_transaction_read_only = on")
        await connection.close()

    asyncio.run(freeze())
    console.write_bookings()
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    failed = console("migrate")
    assert failed.code == 1
    assert failed.err.startswith("error: ")
    assert "read-only" in failed.err
    assert "Traceback" not in failed.err


def test_only_what_is_there_for_it_makes_a_database(console: Console) -> None:
    console.write_bookings()
    console.write("rows.jsonl", '{"customer": "Ada", "phone": "1"}')
    for arguments in (
        ("data",),
        ("data", "booking"),
        ("jobs",),
        ("export", "booking", "-o", "-"),
        ("import", "booking", "rows.jsonl"),
        ("run", "upcoming", "customer=Ada"),
        ("run", "book", "customer=Ada", "phone=1"),
        ("run", "refuse"),
    ):
        failed = console(*arguments)
        assert (failed.code, "There is no database penstock.db." in failed.err) == (1, True)
        assert "penstock migrate" in failed.err
    console.ok("migrate", "--plan")
    assert [file.name for file in console.folder.iterdir() if "db" in file.name] == []


def test_a_database_that_lacks_tables_is_explained_and_left_as_it_is(unmigrated: Console) -> None:
    short, whole = unmigrated.ok("migrate", "--plan").out, unmigrated.ok("migrate", "--plan", "--all").out
    assert "create table" in short.lower()
    assert "ready_job" not in short
    assert "ready_job" in whole
    assert len(short.splitlines()) < 40
    unmigrated.write("empty.py", "from penstock import App\napp = App()\n")
    unmigrated.write("rows.jsonl", '{"customer": "Ada", "phone": "1"}')
    unmigrated.ok("migrate", "--app", "empty")
    plan = unmigrated.ok("migrate", "--plan", "--json", "--app", "bookings").json
    assert plan["sql"]
    for arguments in (
        ("data",),
        ("data", "booking"),
        ("export", "booking", "-o", "-"),
        ("import", "booking", "rows.jsonl"),
        ("run", "upcoming", "customer=Ada"),
        ("run", "book", "customer=Ada", "phone=1"),
        ("run", "refuse"),
    ):
        failed = unmigrated(*arguments, "--app", "bookings")
        assert (failed.code, failed.err.startswith("error: The database lacks declarations")) == (1, True), failed.err
        assert "penstock migrate --plan" in failed.err
        assert unmigrated.ok("migrate", "--plan", "--json", "--app", "bookings").json == plan


def test_a_file_of_another_program_is_left_as_it_is(console: Console) -> None:
    console.write_bookings()
    other = console.folder / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("create table theirs (x)")
    connection.close()
    before = other.read_bytes()
    for arguments in (("run", "upcoming", "customer=Ada"), ("import", "booking", "-")):
        failed = console(*arguments, "--database", "sqlite:///other.db")
        assert (failed.code, "lacks declarations" in failed.err) == (1, True)
    assert other.read_bytes() == before


def test_a_variable_that_sets_nothing_is_told(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.write("app.py", LONE)
    monkeypatch.setenv("PENSTOCK_LEESE", "5")
    said = console.ok("config").err
    assert said.count("config.unknown_variable variable=PENSTOCK_LEESE meant=PENSTOCK_LEASE") == 1


# ----- streams and signals


def test_output_to_no_terminal_is_plain(bookings: Console) -> None:
    for arguments in (("functions",), ("migrate",), ("data",), ("config",), ("run", "nothing"), ("--help",)):
        result = bookings(*arguments)
        assert "\x1b" not in result.out + result.err


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


def test_an_interrupt_ends_quietly(console: Console) -> None:
    console.write(
        "app.py",
        LONE + "import asyncio\nfrom penstock import ActionCtx\n@app.action\nasync def wait(ctx: ActionCtx) -> None:\n"
        "    print('waiting', flush=True)\n    await asyncio.Event().wait()\n",
    )
    console.ok("migrate")
    with console.start("run", "wait") as process:
        process.wait_for("waiting")
        process.tell(signal.SIGINT)
        assert process.end() == 130
        assert "".join(process.lines).strip() == "waiting"


def test_logs_are_text_or_json(unmigrated: Console) -> None:
    bookings = unmigrated
    text = bookings.ok("migrate", "--log-level", "info").err
    assert " info    schema.applied migrations=" in text
    bookings.write_bookings(("note: str", "remark: str | None = None\n    note: str"))
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


@pytest.mark.parametrize("level", ["info", "debug"])
def test_the_program_is_logged_and_what_its_libraries_do_is_not(console: Console, level: str) -> None:
    console.write("app.py", CALLER)
    console.ok("migrate")
    called = console.ok("run", "call", "--log-level", level)
    assert called.json == 204
    assert "calling" in called.err
    assert "secret" not in called.err
