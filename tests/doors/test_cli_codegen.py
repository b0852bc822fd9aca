"""Commands that write files: codegen and function-spec."""

from __future__ import annotations

import json
import signal

from doors.cli_fixtures import HELLO, Console

# ----- codegen


def test_clients_are_written_where_they_are_wanted_and_checked(console: Console) -> None:
    console.write_bookings()
    refused = console("codegen").err
    assert "Nothing says where" in refused
    assert 'typescript = "FOLDER" to [tool.penstock.codegen] of this folder' in refused
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
