"""The terminal of ``penstock dev``: one line for each finished call, job and task run; the program's own logs between.

Owns which of penstock's events are shown, and their form. With `verbose` all of them are, with whole tracebacks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import click
from starlette.exceptions import HTTPException

from penstock.cli.failure import in_colour, place_of, style
from penstock.cli.opening import TextFormatter, set_up_logs
from penstock.cli.options import Options
from penstock.cli.output import say, wrapper
from penstock.cli.visible import visible, visible_line
from penstock.errors import PenstockError
from penstock.observe.errortext import error_text, trace_text, trim
from penstock.observe.readable import amount, span

_MARGIN = 9  # columns, of the time
_NARROW = 80
_MOST_A_SECOND = 20  # lines of runs that ended well
_MOST_NAMED = 3  # functions whose runs have no line
_RUNS, _ERRORS = {"call.ran", "job.ran"}, {"failed", "retrying"}
_ENDS = {"success": ("ok", "green"), "retrying": ("retry", "yellow"), "failed": ("failed", "red")}


class DevFormatter(TextFormatter):
    """A line for each run, each broken practice and each change of the schema; other records as elsewhere."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__(colour=in_colour())
        self.datefmt = "%H:%M:%S"
        self._verbose = verbose
        self._failed: BaseException | None = None  # the error that a line has told last
        self._second = self._shown = 0  # in that second, runs that ended well
        self._folded = Counter[str]()  # those of them without a line, by name
        self._explained = set[str]()  # rules of practices

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show a record: not what a line of a run tells, and of penstock's own events none that is usual."""
        name, facts = getattr(record, "event", ""), getattr(record, "facts", {})
        if self._verbose or not name or name == "schema.applied":
            return True
        if name in _RUNS:
            return not self._folds(record, facts)
        if name == "http.request":
            was_told, self._failed = self._failed is not None, None
            return bool(facts.get("error")) and not was_told
        if name == "call.failed":
            return record.exc_info is None or record.exc_info[1] is not self._failed
        if name == "call.refused" and self._failed is not None and facts["error"] == str(self._failed):
            return False
        is_refused = name == "socket.closed" and facts["reason"] == "AuthError" and facts["error"]
        return bool(is_refused) or (name != "job.failed" and record.levelno >= logging.WARNING)

    def format(self, record: logging.LogRecord) -> str:
        name, facts = getattr(record, "event", ""), getattr(record, "facts", {})
        time = style(f"{self.formatTime(record, '%H:%M:%S')} ", dim=True)
        if name == "schema.applied":
            return f"{time}{schema_summary(facts)}"
        if name in {"http.request", "socket.closed"} and not self._verbose:
            asked = facts.get("function") or facts.get("path") or facts["client"]
            told = visible_line(f"{facts.get('method', 'socket'):9} {asked}  {facts['error']}")
            return f"{time}{style('refused', fg='red')} {told}"
        if name == "practice.broken" and not self._verbose:
            return time + self._practice(facts)
        if name == "outbox.failed" and not self._verbose and self._has_told(facts):
            outbox = facts["outbox"]
            hint = f"message {facts['message']}, attempt {facts['attempts']}: penstock outbox show {outbox}"
            return " " * _MARGIN + style(visible_line(hint), dim=True)
        if name not in _RUNS:
            line = super().format(record)
            return line if self._verbose or not name else _wrap(line)
        error = record.exc_info[1] if record.exc_info else None
        self._failed = error
        lines = [time + _run_line(facts)]
        if error is not None:
            lines += [indent(visible(self._error_text(error)).rstrip(), " " * _MARGIN)]
        if facts["status"] in _ERRORS and "job" in facts:
            lines += [" " * _MARGIN + style(f"penstock jobs show {facts['job']}", dim=True)]
        return "\n".join(lines)

    def _practice(self, facts: Mapping[str, Any]) -> str:
        """A place that breaks a rule, and at the first one of each rule how to learn more."""
        place, seen = visible_line(facts["place"]), visible_line(facts["seen"])
        lines = wrapper(_room() - 8).wrap(f"{place}  {seen}")
        if facts["code"] not in self._explained:
            self._explained.add(facts["code"])
            lines.append(style(f"{facts['why']} says why", dim=True))
        return style(f"{facts['code']:8}", fg="yellow") + f"\n{'':17}".join(lines)

    def _folds(self, record: logging.LogRecord, facts: Mapping[str, Any]) -> bool:
        """Whether a run is only counted, as there were many in this second."""
        if facts["status"] != "success":
            return False
        if int(record.created) != self._second:
            self._unfold()
            self._second, self._shown = int(record.created), 0
        self._shown += 1
        if self._shown <= _MOST_A_SECOND:
            return False
        if not self._folded:
            asyncio.get_running_loop().call_later(1, self._unfold)
        self._folded[_name_of(facts)] += 1
        return True

    def _unfold(self) -> None:
        if self._folded:
            each = ", ".join(f"{count:,} {name}" for name, count in self._folded.most_common(_MOST_NAMED))
            say(f"{'':{_MARGIN}}… and {self._folded.total():,} more: {each}")
            self._folded.clear()

    def _has_told(self, facts: Mapping[str, Any]) -> bool:
        """Whether the line of a run has told this error."""
        return self._failed is not None and facts["error"] == error_text(self._failed)

    def _error_text(self, error: BaseException) -> str:
        if self._verbose:
            return trace_text(error)
        if isinstance(error, HTTPException):
            return str(error)
        if isinstance(error, PenstockError):
            where = place_of(error).removeprefix(f"{Path.cwd()}{os.sep}")
            return error_text(error) + (f"\n  at {where}" if where else "")
        return trim(trace_text(error))


def set_up_dev_logs(options: Options, *, verbose: bool) -> None:
    """Set up logs as elsewhere, in the form for a person who watches unless the options name another one."""
    set_up_logs(options.log_level or "info", options.log_format)
    if options.log_format == "text":
        formatter = DevFormatter(verbose=verbose or options.debug)
        for handler in logging.getLogger().handlers:
            handler.setFormatter(formatter)
            handler.addFilter(formatter.filter)


def schema_summary(facts: Mapping[str, Any]) -> str:
    """A summary, such as ``12 tables made, 3 other changes of tables``."""
    made, changes = facts["tables_made"], facts["changes"]
    told = [f"{amount(made, 'table')} made"] if made else []
    if changes > made:
        told.append(amount(changes - made, "other change" if made else "change") + " of tables")
    return ", ".join(told) or "penstock's own tables are up to date"


def _run_line(facts: Mapping[str, Any]) -> str:
    """Such as ``ok      mutation  shop:book   4.1 ms  read 1, wrote 1  ada``; facts without room stand below it."""
    end, colour = _ENDS.get(facts["status"], (facts["status"], "yellow"))
    kind = "task" if "task" in facts else "job" if "job" in facts else facts["kind"]
    name = _name_of(facts)
    first = f"{style(f'{end:8}', fg=colour)}{kind:9}{name:24} {span(facts['ms'] / 1000):>7}"
    rows = [f"{word} {facts[fact]:,}" for fact, word in (("read", "read"), ("written", "wrote")) if facts[fact]]
    rest = [", ".join(rows)] if rows else []
    if facts.get("attempt", 1) > 1:
        rest.append(f"attempt {facts['attempt']}")
    rest += [", ".join(map(str, json.loads(facts["key"])))] if "key" in facts else []
    rest += [facts["caller"]] if "caller" in facts else []
    line, room = first, _room()
    lines = []
    for part in map(visible_line, rest):
        if len(click.unstyle(f"{line}  {part}")) > room:
            lines.append(line)
            line = " " * 17 + part
        else:
            line += f"  {part}"
    return "\n".join([*lines, line])


def _wrap(text: str) -> str:
    """The first line of a record in the width of the terminal, each word whole; then the rest as it is."""
    line, newline, rest = text.partition("\n")
    lines = wrapper(_room() + _MARGIN, subsequent_indent=" " * 17).wrap(line)
    return "\n".join(lines) + newline + rest


def _room() -> int:
    return shutil.get_terminal_size((_NARROW, 24)).columns - _MARGIN


def _name_of(facts: Mapping[str, Any]) -> str:
    return visible_line(facts.get("task") or facts["function"])
