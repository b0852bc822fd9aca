"""Commands that write files: codegen, function-spec and init."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib

import pytest
from doors.cli_fixtures import HELLO, Console

from penstock.distribution import requirement

# ----- codegen


def test_clients_are_written_where_they_are_wanted_and_checked(console: Console) -> None:
    console.write_bookings()
    assert "Nothing says where" in console("codegen").err
    assert console.ok("codegen", "--out", "all", "--python", "--openapi").err.count("wrote: ") == 2
    assert {path.name for path in (console.folder / "all").iterdir()} == {"api.py", "openapi.json"}
    console.write("penstock.toml", 'app = "bookings"\n[codegen]\ntypescript = "web/api"\npython = "clients"\n')
    missing = console("codegen", "--check")
    assert (missing.code, missing.err.count("not current: ")) == (1, 4)
    console.ok("codegen")
    assert 'book: FunctionReference<"mutation", "public"' in (console.folder / "web/api/api.d.ts").read_text("utf-8")
    assert console.ok("codegen", "--check").err == ""
    console.write_bookings(
        ("guests: int = 1\n    status", "guests: float = 1.0\n    status"), ("guests: int", "guests: float")
    )
    changed = console("codegen", "--check", "--python")
    assert (changed.code, changed.err) == (1, "not current: clients/api.py\nRun penstock codegen to write them.\n")
    assert "cannot be written: " in console("codegen", "--out", "penstock.toml").err


def test_files_of_other_origin_and_unknown_clients_are_refused(console: Console) -> None:
    console.write_bookings()
    own = console.write("web/api.py", "mine = True\n")
    assert "was not written by penstock codegen" in console("codegen", "--out", "web").err
    assert own.read_text("utf-8") == "mine = True\n"
    assert [path.name for path in own.parent.iterdir()] == ["api.py"]
    console.write("penstock.toml", '[codegen]\nrust = "web"\n')
    assert "codegen writes no rust" in console("codegen").err


def test_the_function_spec_is_that_of_convex(console: Console) -> None:
    console.write_bookings()
    spec = json.loads(console.ok("function-spec", "--url", "http://here").out)
    assert spec["url"] == "http://here"
    functions = {function["identifier"]: function for function in spec["functions"]}
    book = functions["bookings.js:book"]
    assert (book["functionType"], book["visibility"]) == ("Mutation", {"kind": "public"})
    assert book["args"]["value"]["guests"] == {"fieldType": {"type": "number"}, "optional": True}
    assert book["returns"] == {"type": "id", "tableName": "booking"}
    row = functions["bookings.js:upcoming"]["returns"]["value"]["value"]
    assert row["_creationTime"] == {"fieldType": {"type": "number"}, "optional": False}
    assert row["status"]["fieldType"]["value"][1] == {"type": "literal", "value": "paid"}


def test_watching_writes_again_when_the_source_changes(console: Console) -> None:
    hello = HELLO.replace("(ctx: QueryCtx", "(ctx: QueryCtx, name: str")
    console.write("hello.py", hello)
    with console.start("codegen", "--out", ".", "--watch") as process:
        process.wait_for("wrote: .*api.py")
        process.wait_for("Waiting for a change")
        console.write("hello.py", hello.replace("name: str", "name: int"))
        process.wait_for("hello.py changed")
        process.wait_for("wrote: .*api.py")
        console.write("hello.py", hello + "app = (")
        process.wait_for("SyntaxError")
        process.wait_for("Waiting for a change")
        process.tell(signal.SIGINT)
        process.end()
    assert "name: int" in (console.folder / "api.py").read_text("utf-8")


# ----- init


@pytest.mark.long
def test_a_new_project_runs_at_once(console: Console, empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = console.ok("init", "My Seats")
    folder = console.folder / "My Seats"
    assert len(written.out.splitlines()) == 10
    assert "cd 'My Seats' && penstock dev" in written.err
    again = console("init", "My Seats")
    assert (again.code, "nothing was written" in again.err) == (1, True)

    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    assert (project["name"], project["dependencies"]) == (
        "my-seats",
        [requirement("dashboard", "migrations", "postgres")],
    )
    assert "Docker and CI cannot read that" in written.err, "these tests run on a working tree"
    assert (folder / "README.md").read_text("utf-8").startswith("# my-seats\n\n```console\n$ python3")
    for file in ("compose.yaml", ".github/workflows/ci.yml"):
        assert importlib.import_module("yaml").safe_load((folder / file).read_text("utf-8"))

    monkeypatch.chdir(folder)
    console.folder = folder
    assert console.ok("check").err.strip() == "Checked 3 files: nothing to say."
    server = {} if empty_database_url.startswith("sqlite") else {"TEST_DATABASE_URL": empty_database_url}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    shutil.copy(folder / "tests/test_app.py", folder / "tests/test_again.py")
    environment = {**os.environ, **server}
    tested = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout, "each on a database of its own"

    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    console.ok("migrate")
    console.ok("run", "add", "text=three more words")
    assert "three more words" in {note["text"] for note in console.ok("run", "notes").json}
