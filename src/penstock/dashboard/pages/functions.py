"""Functions: how often they run, how long they take and why; and one of them, to be called."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

from pydantic_core import from_json, to_json

from penstock.dashboard.charts import charts_of
from penstock.dashboard.forms import form_of, inputs_of, read_all, wrong_fields
from penstock.dashboard.mask import mask, secrets_of
from penstock.dashboard.page import Act, Answer, Page, Role, View
from penstock.dataclass import dataclass
from penstock.errors import PenstockError, ValueInvalid
from penstock.functions.function import AnyFunction, FunctionKind, signature_text
from penstock.identity.caller import SYSTEM, Caller
from penstock.identity.claims import identity_of_fields
from penstock.observe.errortext import error_text, trace_text
from penstock.observe.logbook import RAN, LogEvent, Numbers
from penstock.observe.timing import STEPS, percentiles
from penstock.server.requests import Refused
from penstock.store.nouns.logbook import HALF_HOUR, KEPT, half_hour_of, minute_of
from penstock.wire.incoming import Message
from penstock.wire.outgoing import Format, encode_result

WINDOW = timedelta(hours=1)  # over which runs are counted
_LISTED, _SLOWEST, _FAILING = 20, 10, 5
_CALM = 6  # steps without an error, before which older errors are another story
_RUNS = "ran", "failed", "slow"
_SHARES = 0.5, 0.95, 0.99
_OUTCOMES = "success", "error", "canceled"
_WORTH_TELLING = 0.1  # of the time
_OWN = {FunctionKind.ACTION: "own code and the outside world"}


@dataclass(frozen=True, slots=True)
class Seen:
    """A function as the page shows it. Runs are those of the last hour, and times in seconds; None without any."""

    function: AnyFunction
    access: str
    outcomes: Mapping[str, int]
    conflicts: int
    times: Mapping[float, float | None]
    lag: float | None
    parts: Mapping[str, float] = field(default_factory=dict)  # the shares of its time, the greatest first

    @property
    def runs(self) -> int:
        return sum(self.outcomes.values())

    @property
    def why(self) -> str:
        """The step that took most of its time."""
        return ", ".join(f"{name} {share:.0%}" for name, share in self.parts.items() if share >= _WORTH_TELLING)


def _summary(function: AnyFunction, sums: Numbers) -> Seen:
    found = sums.get(f"function {function.name}", {})
    return Seen(
        function,
        (function.access_text or "public, not said") if function.public else "internal",
        {one: round(found.get(one, 0)) for one in _OUTCOMES},
        round(found.get("conflict", 0)),
        dict(zip(_SHARES, percentiles(found, *_SHARES), strict=True)),
        percentiles(found, 0.95, prefix="lag ")[0],
        _parts(function, found),
    )


def _parts(function: AnyFunction, spent: Mapping[str, float]) -> Mapping[str, float]:
    found: dict[str, float] = {name: spent.get(name, 0.0) for name in STEPS}
    found[_OWN.get(function.kind, "own code")] = max(0.0, spent.get("all", 0.0) - sum(found.values()))
    whole = sum(found.values())  # more than all, if calls ran at the same time
    in_order = sorted(found.items(), key=lambda one: -one[1])
    return {name: seconds / whole for name, seconds in in_order} if whole else {}


@dataclass(frozen=True, slots=True)
class Failing:
    """A function that fails: its numbers, the beginning of its errors, and its last failed run, if it is still kept."""

    seen: Seen
    since: datetime
    last: LogEvent | None

    @property
    def share(self) -> float:
        return self.seen.outcomes["error"] / self.seen.runs


async def failing(view: View) -> list[Failing]:
    """Find the functions with the most errors in the last hour."""
    sums = await view.activity.sums(WINDOW)
    found = [one for one in (_summary(one, sums) for one in view.backend.app.registry) if one.outcomes["error"]]
    found.sort(key=lambda one: -one.outcomes["error"])
    return [
        Failing(one, await _failing_since(view, name), next(iter(runs), None))
        for one in found[:_FAILING]
        for name in [one.function.name]
        for runs in [await view.log(1, level=RAN, event="function.failed", words=[f" {name} "])]
    ]


async def _failing_since(view: View, name: str) -> datetime:
    """The minute in which the errors of a function began, or the half hour if that is longer ago than an hour."""
    now = view.backend.engine.clock.now()
    place, since = await _first_error(view, name, minute_of(now) - WINDOW, timedelta(minutes=1))
    return since if place > _CALM else (await _first_error(view, name, half_hour_of(now) - KEPT, HALF_HOUR))[1]


async def _first_error(view: View, name: str, since: datetime, step: timedelta) -> tuple[int, datetime]:
    """The place and the time of the step after which a function has had no calm."""
    steps = await view.activity.series(f"function {name}", since, step)
    bad = [place for place, parts in enumerate(steps) if parts.get("error")] or [0]
    first = next((one for before, one in reversed([*pairwise(bad)]) if one - before > _CALM), bad[0])
    return first, since + first * step


async def _load(view: View) -> Mapping[str, Any]:
    sums = await view.activity.sums(WINDOW)
    registry = view.backend.app.registry
    functions = sorted((*registry, *registry.http), key=lambda one: one.name)
    return {"functions": [_summary(one, sums) for one in functions], "shares": _SHARES}


def _find(view: View) -> AnyFunction:
    found = view.backend.app.registry.find(view.require("function"))
    if found is None:
        raise Refused(404, "FunctionNotFound", "This app has no such function.")
    return found


async def _load_function(view: View) -> Mapping[str, Any]:
    function = _find(view)
    inputs, word = inputs_of(function, view.secrets), [f" {function.name} "]
    runs = {one: await view.log(_LISTED, level=RAN, event=f"function.{one}", words=word) for one in _RUNS}
    allowed = view.role >= (Role.look if function.kind is FunctionKind.QUERY else Role.operate)
    return {
        "one": _summary(function, await view.activity.sums(WINDOW)),
        "shares": _SHARES,
        "charts": await charts_of(view, (f"function {function.name}", "call")),
        "signature": signature_text(function),
        "about": inspect.getdoc(function.declared) or "",
        "slowest": sorted(runs["slow"], key=lambda one: -one.facts["all"])[:_SLOWEST],
        "failed": runs["failed"],
        "runs": sorted(runs["ran"] + runs["failed"], key=lambda one: one.id, reverse=True)[:_LISTED],
        "entries": await view.log(_LISTED, words=word),
        **form_of(inputs, view.words),
        "identity": view.words.get("identity", ""),
        "answer": None,
        "may_call": allowed,
    }


def _about(view: View) -> Mapping[str, Any]:
    """The entry of the audit log about a call: values that are no secrets by their names or their types."""
    function = _find(view)
    values, _ = read_all(inputs_of(function, view.secrets), view.words)
    user = {"identity": view.words["identity"]} if view.word("identity") else {}
    return {"function": function.name, **user, "arguments": mask(values, secrets_of(function))}


async def _call(view: View, *, queries: bool) -> Answer:
    function = _find(view)
    if (function.kind is FunctionKind.QUERY) is not queries:
        raise ValueInvalid(f"{function.name} is a {function.kind.value}.")
    inputs = inputs_of(function, view.secrets)
    values, wrong = read_all(inputs, view.words)
    if wrong:
        return Answer("Not done: an argument is no JSON.", {"wrong": wrong})
    identity, machine = view.word("identity"), view.backend.engine.machine
    caller = SYSTEM if identity is None else Caller(identity_of_fields(Message(identity).value))
    began = machine.monotonic()
    try:
        result = await view.backend.dispatch.call(
            function.name,
            function.kind,
            to_json(values),
            internal=True,
            caller=caller,
            finish=partial(encode_result, form=Format.CLEAN),
        )
    except Exception as error:  # noqa: BLE001 - the function's own, to be shown to who has called it
        wrong = wrong_fields(error, {one.name for one in inputs}) if isinstance(error, PenstockError) else {}
        told, trace = error_text(error), None if isinstance(error, PenstockError) else trace_text(error)
        answer = {"error": told, "trace": trace, "seconds": machine.monotonic() - began}
        return Answer(f"It failed: {told}", {"wrong": wrong, "answer": answer})
    seconds = machine.monotonic() - began
    return Answer("It succeeded.", {"answer": {"result": from_json(result), "error": None, "seconds": seconds}})


PAGES = (
    Page("/functions", "Functions", "functions.html", _load, {}),
    Page(
        "/functions/{function}",
        "Function",
        "function.html",
        _load_function,
        {
            "query": Act(partial(_call, queries=True), Role.look, about=_about),
            "call": Act(partial(_call, queries=False), about=_about),
        },
        above="/functions",
    ),
)
