"""The four monitors of Convex's Workpool, as its README writes them for Axiom, in Python over lines of a log.

Each of them reads what a line has at `data.message` and `data.function.component_path`, and nothing else.
"""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from statistics import fmean
from typing import Any

from penstock.clock import Clock
from penstock.observe.logs import JsonFormatter

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
    """The lines of JSON that penstock logs in a block."""
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
    """What was said in the lines that say something as JSON."""
    return [message for _, message in _parsed(lines) if message]


def _parsed(lines: Iterable[str]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for row in map(flat, lines):
        try:
            parsed = json.loads(str(row.get("data.message")).strip("'"))
        except ValueError:
            parsed = {}
        yield row, parsed if isinstance(parsed, dict) else {}


def max_backlog(lines: Iterable[str]) -> Bins:
    """The current backlog of each pool, by the minute."""

    def backlog(parsed: dict[str, Any]) -> float | None:
        return int(parsed["backlog"])

    return _summarized(lines, "report", backlog, max, 60, "data.function.component_path")


def permanent_failure_rate(lines: Iterable[str]) -> Bins:
    """The average rate of permanent failures of each pool, by five minutes; what is null does not count."""

    def rate(parsed: dict[str, Any]) -> float | None:
        found = parsed["permanentFailureRate"]
        return None if found is None else float(found)

    return _summarized(lines, "report", rate, fmean, 300, "data.function.component_path")


def failure_ratio(lines: Iterable[str]) -> Bins:
    """The ratio of failures of each function, by five minutes."""

    def failed(parsed: dict[str, Any]) -> float | None:
        return None if parsed["status"] == "canceled" else float(parsed["status"] != "success")

    return _summarized(lines, "completed", failed, fmean, 300, "fnName")


def start_lag_seconds(lines: Iterable[str]) -> Bins:
    """The average time between enqueueing work and it starting, of each function, by the minute."""

    def lag(parsed: dict[str, Any]) -> float | None:
        return float(parsed["startLag"]) / 1000

    return _summarized(lines, "started", lag, fmean, 60, "fnName")


def _summarized(
    lines: Iterable[str],
    event: str,
    value: Callable[[dict[str, Any]], float | None],
    summary: Callable[[list[float]], float],
    seconds: int,
    by: str,
) -> Bins:
    values: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row, parsed in _parsed(lines):
        if parsed.get("component") != "workpool" or parsed.get("event") != event:
            continue
        found = value(parsed)
        if found is not None:
            moment = int(datetime.fromisoformat(row["_time"]).timestamp())
            values[moment - moment % seconds, str((row | parsed)[by])].append(found)
    return {place: summary(found) for place, found in values.items()}


# ----- penstock's own monitors

_APL = re.compile(
    r"\['[^']+'\]\n\| where (?P<where>.+)\n\| summarize \w+ = (?P<summary>max|avg)\((?P<value>.+)\) "
    r"by bin\(_time, (?P<minutes>\d+)m\), (?P<by>\w+)"
)


def apl_queries(text: str) -> list[str]:
    """The queries of a file, each without its comment."""
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
