"""Waiting for what becomes true by itself, and reading what was logged meanwhile."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any

import pytest

from penstock.clock import Clock, SystemClock
from penstock.observe.logs import JsonFormatter
from penstock.testing import TestClock

SOON = 180.0  # for a machine that does other things as well; only what fails waits so long


async def until(true: Callable[[], Awaitable[bool] | bool]) -> float:
    """Wait until something is true, and say how many seconds that took; fail if it takes long."""
    clock, pause = SystemClock(), 0.01
    begun = clock.monotonic()
    async with asyncio.timeout(SOON):
        while not (await answer if inspect.isawaitable(answer := true()) else answer):
            await clock.sleep(pause)
            pause = min(1.5 * pause, 0.05)  # to ask takes time from what it waits for
    return clock.monotonic() - begun


@asynccontextmanager
async def passing(clock: TestClock) -> AsyncIterator[None]:
    """Let time pass in a block: live queries look at jobs at intervals."""

    async def let_pass() -> None:
        while True:
            clock.advance(timedelta(seconds=0.25))
            await SystemClock().sleep(0.01)

    task = asyncio.create_task(let_pass())
    try:
        yield
    finally:
        task.cancel()


Bins = dict[tuple[int, str], float]


class _Stream(logging.Handler):
    """Writes lines as a log on disk would have them, at the time of a clock."""

    def __init__(self, clock: Clock | None) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._clock = clock
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        if self._clock is not None:
            record.created = self._clock.now().timestamp()
        self.lines.append(self.format(record))


@contextmanager
def streamed(clock: Clock | None = None, level: int = logging.INFO) -> Iterator[list[str]]:
    stream, log = _Stream(clock), logging.getLogger("penstock")
    before = log.level
    log.addHandler(stream)
    log.setLevel(level)
    try:
        yield stream.lines
    finally:
        log.removeHandler(stream)
        log.setLevel(before)


def flat(line: str) -> dict[str, Any]:
    """A line as Axiom takes it in: the names of nested fields joined by dots."""
    return dict(_flat(json.loads(line)))


def _flat(value: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{before}{name}.")
        else:
            yield f"{before}{name}", inner


def messages(lines: Iterable[str]) -> list[dict[str, Any]]:
    found = []
    for row in map(flat, lines):
        try:
            parsed = json.loads(str(row.get("data.message")).strip("'"))
        except ValueError:
            continue
        found += [parsed] if isinstance(parsed, dict) and parsed else []
    return found


# ----- penstock's own monitors

_APL = re.compile(
    r"\['[^']+'\]\n\| where (?P<where>.+)\n\| summarize \w+ = (?P<summary>max|avg)\((?P<value>.+)\) "
    r"by bin\(_time, (?P<minutes>\d+)m\), (?P<by>\w+)"
)


def apl_queries(text: str) -> list[str]:
    return [match[0] for match in _APL.finditer(text)]


def apl(query: str, lines: Iterable[str]) -> Bins:
    """The bins of a query in the form that penstock's monitors have; a field that a line lacks is an error."""
    found = _APL.fullmatch(query)
    assert found is not None, query
    values: dict[tuple[int, str], list[float]] = defaultdict(list)
    seconds = int(found["minutes"]) * 60
    for row in map(json.loads, lines):
        if not all(_holds(part, row) for part in found["where"].split(" and ")):
            continue
        value = _value(found["value"], row)
        if value is not None:
            moment = int(datetime.fromisoformat(row["_time"]).timestamp())
            values[moment - moment % seconds, str(row[found["by"]])].append(value)
    largest = found["summary"] == "max"
    return {place: max(those) if largest else fmean(those) for place, those in values.items()}


def _holds(condition: str, row: dict[str, Any]) -> bool:
    field, sign, text = condition.split(" ")
    return bool((row[field] == text.strip('"')) == (sign == "=="))


def _value(term: str, row: dict[str, Any]) -> float | None:
    if choice := re.fullmatch(r"iff\((.+), ([\d.]+), ([\d.]+)\)", term):
        return float(choice[2] if _holds(choice[1], row) else choice[3])
    field, _, divisor = term.partition(" / ")
    return None if row[field] is None else row[field] / float(divisor or 1)


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [vars(record)["facts"] for record in caplog.records if getattr(record, "event", "") == name]
