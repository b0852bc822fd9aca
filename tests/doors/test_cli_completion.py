"""The shell completes the names of functions."""

from __future__ import annotations

import pytest
from doors.cli_fixtures import Console

TWO = """
from penstock import App, QueryCtx, public

app = App()
print("imported")


@app.query(access=public)
async def hello(ctx: QueryCtx) -> str:
    return "hi"


@app.query(name="other:hello", access=public)
async def hello_too(ctx: QueryCtx) -> str:
    return "hi"


@app.query(access=public)
async def help_me(ctx: QueryCtx) -> str:
    return "hi"
"""


@pytest.mark.parametrize(
    ("begun", "names"),
    [
        ("", ["greet:hello", "help_me", "other:hello"]),
        ("hel", ["help_me"]),
        ("gre", ["greet:hello"]),
        ("greet:h", ["greet:hello", "greet:help_me"]),
        ("zoo", []),
    ],
)
def test_names_of_functions(console: Console, monkeypatch: pytest.MonkeyPatch, begun: str, names: list[str]) -> None:
    console.write("greet.py", TWO)
    for words, number in ((f"penstock run {begun}", 2), (f"penstock --app greet.py run {begun}", 4)):
        monkeypatch.setenv("_PENSTOCK_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(number))
        assert console().out.split() == [f"plain,{name}" for name in names], words


def test_a_program_that_cannot_be_imported_has_none(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    console.write("greet.py", "from penstock import App\napp = App(\n")
    monkeypatch.setenv("_PENSTOCK_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "penstock run he")
    monkeypatch.setenv("COMP_CWORD", "2")
    found = console()
    assert (found.out.strip(), found.err) == ("", "")
