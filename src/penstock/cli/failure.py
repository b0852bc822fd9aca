"""Shows an error on the command line: one red line with the next step, JSON, or the program's traceback.

Owns the form and the exit code of every failure. Nothing here decides what is an error.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from typing import Any

import click

import penstock
from penstock.cli.visible import visible, visible_json
from penstock.errors import PenstockError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

_STDLIB = Path(sysconfig.get_path("stdlib"))
_MACHINERY = (
    "<frozen ",
    "<string>",  # as the __init__ of a dataclass
    *(f"{Path(file).parent}{os.sep}" for file in (penstock.__file__, click.__file__) if file),
    *(f"{_STDLIB / package}{os.sep}" for package in ("asyncio", "importlib", "concurrent")),
)


class ProgramFailed(Exception):
    """The program raised while it was imported; its error is the cause."""


def show_failure(error: BaseException, *, as_json: bool, debug: bool) -> int:
    """Print an error to stderr; the exit code."""
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter's last flush goes nowhere
        return FAILED
    if isinstance(error, click.Abort):
        if isinstance(error.__context__, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt):
            return INTERRUPTED
        say_error("Nothing was done.")
        return FAILED
    code = MISUSED if isinstance(error, click.UsageError) else FAILED
    shown = error.__cause__ if isinstance(error, ProgramFailed) and error.__cause__ else error
    if as_json:
        click.echo(visible_json(json.dumps({"error": _facts(shown)}, default=str, ensure_ascii=False)), err=True)
    elif debug:
        click.echo(visible("".join(TracebackException.from_exception(shown).format())), err=True, nl=False)
    elif isinstance(shown, click.UsageError):
        shown.show(sys.stderr)
    elif isinstance(shown, click.ClickException):
        say_error(shown.format_message())
    elif isinstance(shown, PenstockError):
        where = place_of(shown) if shown is not error else ""
        say_error(shown.what, shown.fix, where)
    else:
        click.echo(visible(program_traceback(shown)), err=True, nl=False)
    return code


def say_error(what: str, fix: str = "", where: str = "") -> None:
    click.echo(f"{style('error:', fg='red', bold=True)} {style(visible(what), fg='red')}", err=True)
    if where:
        click.echo(f"   {style('at', dim=True)}  {where}", err=True)
    if fix:
        click.echo(f"  {style('fix:', bold=True)} {visible(fix)}", err=True)


def style(text: str, **how: Any) -> str:
    """Text in colour, on a terminal that wants it."""
    return click.style(text, **how) if in_colour() else text


def in_colour() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ


def program_traceback(error: BaseException) -> str:
    """The traceback of an error without the frames of penstock and its libraries."""
    found = TracebackException.from_exception(error)
    if any(map(_is_program, found.stack)) or isinstance(error, SyntaxError):
        _trim(found)
    return "".join(found.format())


def place_of(error: BaseException) -> str:
    frames = [frame for frame in TracebackException.from_exception(error).stack if _is_program(frame)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _trim(error: TracebackException) -> None:
    error.stack = StackSummary.from_list([frame for frame in error.stack if _is_program(frame)])
    for inner in (error.__cause__, error.__context__):
        if inner is not None:
            _trim(inner)


def _is_program(frame: FrameSummary) -> bool:
    return not frame.filename.startswith(_MACHINERY)


def _facts(error: BaseException) -> dict[str, Any]:
    if isinstance(error, PenstockError):
        facts: dict[str, Any] = {"code": error.code, "message": error.what, "fix": error.fix, **error.facts}
        return {**facts, "data": error.data} if hasattr(error, "data") else facts
    if isinstance(error, click.ClickException):
        return {"code": "usage", "message": error.format_message(), "fix": ""}
    return {"code": "program", "message": f"{type(error).__name__}: {error}", "traceback": program_traceback(error)}
