"""Charts over time: how much each name of the logbook did in the last hour, day or week, as lines with axes.

Owns the spans of time, and which lines are drawn of jobs, of calls and of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from math import floor, log10
from typing import Literal
from urllib.parse import urlencode

from penstock.dashboard.page import View
from penstock.dataclass import dataclass
from penstock.errors import ValueInvalid
from penstock.observe.readable import span
from penstock.observe.timing import percentiles
from penstock.store.nouns.logbook import HALF_HOUR, half_hour_of, minute_of

Parts = Mapping[str, float]  # of one step: how much of each part there was
Values = Sequence[float | None]
Noun = Literal["job", "call", "message"]

# By the word of the URL: the step of a point, how many there are, and how the script shows times at the axis.
SPANS: Mapping[str, tuple[timedelta, int, str]] = {
    "hour": (timedelta(minutes=1), 60, "hour"),
    "day": (timedelta(minutes=30), 48, "hour"),
    "week": (timedelta(hours=2), 84, "day"),
}
_WHOLE = 100  # from which on numbers have no decimals
_TICKS = 4  # parts of the axis of time
_ENDS = {"job": ("success", "failed", "canceled"), "call": ("success", "error", "canceled"), "message": ("delivered",)}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: its name, one value for each step, and whether it is drawn as the main one or as a bad one."""

    name: str
    values: Values
    look: Literal["first", "second", "bad"] = "first"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart."""

    title: str  # its heading
    lines: Sequence[Line]  # its lines
    top: float  # the value at the top of its axis
    tell: Callable[[float | None], str]  # writes a value

    def path(self, line: Line) -> str:
        """The path of a line, 100 high, with gaps where values are missing."""
        values, text = [None, *line.values, None], ""
        for place, value in enumerate(line.values):
            if value is not None:
                starts, ends = values[place] is None, values[place + 2] is None
                text += f"{'M' if starts else 'L'}{place} {100 - 100 * value / self.top:.3g}"
                text += "h.5" if starts and ends else ""  # of one value alone there would be no line
        return text

    @property
    def summary(self) -> str:
        """The chart in words."""
        return f"{self.title}: " + ", ".join(
            f"{line.name} {self.tell(last_of(line))} now, at most {self.tell(max(known))}"
            if (known := [one for one in line.values if one is not None])
            else f"{line.name} nothing"
            for line in self.lines
        )


def last_of(line: Line) -> float | None:
    """The newest value of a line."""
    return next((one for one in reversed(line.values) if one is not None), None)


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts of one span of time."""

    chosen: str  # the span
    links: Sequence[tuple[str, str]]  # each span, with the query of the URL that asks for it
    shown: str  # how the script shows the times at the axis
    since: datetime  # when the first step began
    step: float  # the seconds of a step
    steps: int  # how many there are
    ticks: Sequence[datetime]  # the times at the axis
    all: Sequence[Chart]  # the charts


async def charts_of(view: View, *names: tuple[str, Noun], **asked: str) -> Charts:
    """Draw charts of names of the logbook, such as ``pool mail``, over the span of time that the URL asks for.

    Args:
        view: The view.
        *names: The names, each with the noun that it counts.
        **asked: The other words of the URL.

    Raises:
        ValueInvalid: There is no such span.
    """
    chosen = view.word("span") or "hour"
    if chosen not in SPANS:
        raise ValueInvalid(f"span is one of {', '.join(SPANS)}.")
    step, number, shown = SPANS[chosen]
    now = view.backend.engine.clock.now()
    end = minute_of(now) + timedelta(minutes=1) if chosen == "hour" else half_hour_of(now) + HALF_HOUR
    since = end - number * step
    lengths = [step.total_seconds()] * (number - 1) + [(now - end + step).total_seconds()]
    if lengths[-1] < step.total_seconds() / 4:  # so short that a rate would mislead
        lengths.pop()
    found: list[Chart] = []
    for name, noun in names:
        known = await view.activity.series(name, since, step)
        steps = [known[place] if place < len(known) else {} for place in range(len(lengths))]
        found += _draw(noun, steps, lengths, is_total=" " not in name)
    return Charts(
        chosen,
        [(name, urlencode(asked | {"span": name})) for name in SPANS],
        shown,
        since,
        step.total_seconds(),
        number,
        [since + place * number * step / _TICKS for place in range(_TICKS + 1)],
        found,
    )


def _draw(noun: Noun, steps: Sequence[Parts], seconds: Sequence[float], *, is_total: bool) -> Iterator[Chart]:
    """The charts of a noun; the lag of all functions is that of all pools."""

    def rates(*parts: str, per: float = 1.0) -> Values:
        pairs = zip(steps, seconds, strict=True)
        return [per * sum(one.get(part, 0.0) for part in parts) / (length or 1.0) for one, length in pairs]

    def mean(part: str) -> Values:
        return [one[part] / one["samples"] if "samples" in one else None for one in steps]

    def shares(prefix: str) -> Sequence[Line]:
        found = [percentiles(one, 0.5, 0.95, prefix=prefix) for one in steps]
        return [Line("p50", [one[0] for one in found]), Line("p95", [one[1] for one in found], "second")]

    def errors(**parts: str) -> Sequence[Line]:
        lines = [
            Line(name, rates(part, per=60.0), "bad" if name == "failed" else "second") for name, part in parts.items()
        ]
        return [one for one in lines if one.look == "bad" or any(one.values)]

    done = {"job": "Jobs ended", "call": "Calls", "message": "Delivered"}[noun]
    yield _chart(f"{done} a second", [Line(done.lower(), rates(*_ENDS[noun]))], number_text)
    match noun:
        case "job":
            yield _chart("Jobs failed a minute", errors(failed="failed", retried="retrying"), number_text)
            yield _failures(steps, "failed", "success", "canceled")
            yield _chart("Jobs ready to start", [Line("ready", mean("ready"))], number_text)
            yield _chart("Time from due to start", shares("lag "), span)
            yield _chart("Time of a run", shares(""), span)
        case "call":
            yield _chart("Calls failed a minute", errors(failed="error", conflicts="conflict"), number_text)
            yield _failures(steps, "error", "success", "canceled")
            yield _chart("Time of a call", shares(""), span)
            if not is_total and any(name.startswith("lag ") for one in steps for name in one):
                yield _chart("Time of its jobs from due to start", shares("lag "), span)
        case "message":
            yield _chart("Failed attempts a minute", errors(failed="failed"), number_text)
            yield _failures(steps, "failed", "delivered")
            yield _chart("Messages to deliver", [Line("waiting", mean("ready"))], number_text)
            yield _chart("Age of the oldest message", [Line("age", mean("oldest"))], span)


def _failures(steps: Sequence[Parts], failed: str, *others: str) -> Chart:
    """The chart of the share of one part in the sum of these, with gaps where there is nothing."""
    counts = [(one.get(failed, 0.0), sum(one.get(part, 0.0) for part in (failed, *others))) for one in steps]
    values = [bad / whole if whole else None for bad, whole in counts]
    return _chart("Share that failed", [Line("failed", values, "bad")], share_text)


def _chart(title: str, lines: Sequence[Line], tell: Callable[[float | None], str]) -> Chart:
    return Chart(title, lines, _round_up(max([one for line in lines for one in line.values if one] or [0.0])), tell)


def _round_up(value: float) -> float:
    """The next number that is 1, 2 or 5 times a power of ten; 1 for nothing."""
    if not value:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(one * power for one in (1, 2, 5, 10) if value <= one * power * 1.000001)


def number_text(value: float | None) -> str:
    """A number with two or three digits that matter."""
    return "-" if value is None else f"{value:,.0f}" if value >= _WHOLE or value == int(value) else f"{value:.2g}"


def share_text(value: float | None) -> str:
    """A share as a percentage with up to three digits that matter."""
    return "-" if value is None else f"{100 * value:.3g} %"
