"""Shows an error on the command line: one red line with the next step, JSON, or the program's traceback.

Owns the form and the exit code of every failure. Nothing here decides what is an error.
"""

from __future__ import annotations

import json
import os
import sys
from traceback import TracebackException
from typing import Any

import click

from penstock.cli.visible import visible, visible_json
from penstock.errors import PenstockError
from penstock.observe.errortext import is_program, trace_text, trim

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


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
        click.echo(visible(trace_text(shown)), err=True, nl=False)
    elif isinstance(shown, click.UsageError):
        shown.show(sys.stderr)
    elif isinstance(shown, click.ClickException):
        say_error(shown.format_message())
    elif isinstance(shown, PenstockError):
        where = place_of(shown) if shown is not error else ""
        say_error(shown.what, shown.fix, where)
    else:
        click.echo(visible(trim(trace_text(shown))), err=True, nl=False)
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


def place_of(error: BaseException) -> str:
    frames = [frame for frame in TracebackException.from_exception(error).stack if is_program(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _facts(error: BaseException) -> dict[str, Any]:
    if isinstance(error, PenstockError):
        facts: dict[str, Any] = {"code": error.code, "message": error.what, "fix": error.fix, **error.facts}
        return {**facts, "data": error.data} if hasattr(error, "data") else facts
    if isinstance(error, click.ClickException):
        return {"code": "usage", "message": error.format_message(), "fix": ""}
    return {"code": "program", "message": f"{type(error).__name__}: {error}", "traceback": trim(trace_text(error))}
