"""Rules about calls: that each is awaited, and how functions call and schedule each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from penstock.check.body import Body, Call
from penstock.check.program import Ctx, Function, Table, keyword_of
from penstock.check.project import Module, Outside, Place
from penstock.check.rule import Facts, Places, Rule, awaiting, kind_of, rule
from penstock.check.values import Local, Method, OpenBackend, Pool, Word
from penstock.check.words import OF_LOGGERS, OF_VALUES, RUNS

_HARMLESS = OF_VALUES | {"range", "isinstance", "reversed", "abs", "round"}
_HARMLESS_METHODS = OF_LOGGERS | {  # and of lists, dictionaries and texts
    "append", "extend", "items", "keys", "values", "join", "split", "strip", "lower", "upper", "format", "startswith",
    "endswith", "isoformat", "create_task",
}  # fmt: skip
_HARMLESS_OUTSIDE = ("datetime.", "penstock.", "asyncio.gather", "asyncio.create_task", "asyncio.TaskGroup")


def _is_run(call: Call, *names: str) -> bool:
    return call.is_of(Ctx, *(names or RUNS))


@rule("PEN008")
def internal_only(facts: Facts, rule: Rule) -> Places:
    """A public function is called from within."""
    for body, call in facts.calls_of(object, *RUNS, "run_after", "run_at", "enqueue", "enqueue_batch", "with_options"):
        for node, function in _targets(facts, body, call):
            if function.kind and function.is_public:
                is_run = call.method in RUNS
                why = "callers from outside use it" if is_run else "it checks its callers, and a job has none"
                message = f"{function.name} is public: {why}."
                fix = f"Call an internal {function.kind}, and share a helper with {function.name}."
                yield rule.at(body, node, message, fix)
    for module, node, function in _crons(facts):
        message = f"{function.name} is public: it checks its callers, and a cron has none."
        yield rule.at(
            module, node, message, "Declare a cron of an internal function, and share a helper with this one."
        )
    for function in facts.program.app_functions():
        if function.handles == "cron" and function.is_public:
            message = f"{function.name} is a cron, and public: anyone may run it."
            fix = f"Declare it with internal_{function.kind}."
            yield rule.at(function.module, function.node, message, fix, head=True)


def _crons(facts: Facts) -> Iterator[tuple[Module, ast.expr, Function]]:
    """The public functions of ``app.crons.declare(…)`` and ``app.crons.create(…)``."""
    for module in facts.program.project.modules:
        for node in module.calls_of("declare", "create") if ".crons." in module.text else ():
            is_cron = getattr(getattr(node.func, "value", None), "attr", "") == "crons"
            for one in (*node.args, *(word.value for word in node.keywords)) if is_cron else ():
                found = facts.program.meaning(module, one)
                if isinstance(found, Function) and found.is_public:
                    yield module, one, found


def _targets(facts: Facts, body: Body, call: Call) -> Iterator[tuple[ast.expr, Function]]:
    """The functions that a call runs or schedules."""
    at = 0 if _is_run(call) else 1
    if at == 0 or call.is_word("scheduler", "run_after", "run_at") or call.is_of(Pool, "enqueue", "enqueue_batch"):
        given = [*zip(call.node.args, call.given, strict=True)][at : at + 1]
    else:
        end = keyword_of(call.node, "on_complete") if call.is_of(Pool, "with_options") else None
        given = [(end, facts.program.meaning(body.function.module, end))] if end else []
    for node, function in given:
        if isinstance(function, Function):
            yield node, function


@rule("PEN009")
def helpers(facts: Facts, rule: Rule) -> Places:
    """A query or mutation runs another one, where a helper is enough."""
    for body, call in facts.calls_of(Ctx, "run_query", "run_mutation"):
        is_alone = call.is_tried and call.method == "run_mutation"
        is_of_component = bool(call.node.args) and isinstance(call.node.args[0], ast.Subscript)
        if kind_of(body) in {"query", "mutation"} and not (is_alone or is_of_component):
            name = ast.unparse(call.node.args[0]) if call.node.args else "helper"
            message = f"{call.method} checks arguments and result once more, in the same transaction."
            fix = f"Call the function itself: await {name}(ctx, …). Only run_mutation within try undoes its part alone."
            yield rule.at(body, call.node, message, fix)


@rule("PEN010")
def same_runtime(facts: Facts, rule: Rule) -> Places:
    """run_action runs an action of the same runtime."""
    for body, call in facts.calls_of(Ctx, "run_action"):
        found = call.given[0] if call.node.args else None
        is_step = kind_of(body) == "workflow"
        if isinstance(found, Function) and not is_step and _runtime(found) == _runtime(body.function):
            message = f"{found.name} has the runtime of {body.function.name}: run_action only adds a call that waits."
            fix = f"Call it as a function: await {found.name}(ctx, …)."
            yield rule.at(body, call.node, message, fix)


def _runtime(function: Function) -> str:
    named = function.option("runtime")
    if isinstance(named, ast.Constant) and named.value == "process":
        return "process"
    return "async" if function.is_async else "thread"


@rule("PEN011", "Do both in one query, or in one mutation.")
def sequential(facts: Facts, rule: Rule) -> Places:
    """Two transactions follow each other, where one would be consistent."""
    for body in facts.bodies_of("action"):
        last: Call | None = None
        for call in body.calls:
            if _is_run(call, "run_query", "run_mutation"):
                if last and last.is_before(call) and not (call.is_tried or last.is_tried):
                    between = f"this {call.method} and the {last.method} in line {last.node.lineno}"
                    yield rule.at(body, call.node, f"Rows may change between {between}.")
                last = call
            elif not _is_harmless(call):
                last = None


def _is_harmless(call: Call) -> bool:
    """Whether a call touches nothing outside, so that it need not stand between two transactions."""
    if isinstance(call.of, Outside):
        return call.of.name.startswith(_HARMLESS_OUTSIDE)
    if call.of is None:
        name, method = getattr(call.node.func, "id", ""), getattr(call.node.func, "attr", "")
        return name in _HARMLESS or name.endswith(("Error", "Exception")) or method in _HARMLESS_METHODS
    if isinstance(call.of, Table) or (isinstance(call.of, Place) and isinstance(call.of.node, ast.ClassDef)):
        return True
    return call.is_of(Word) or call.is_of(Pool) or call.is_of(Ctx, "now")


@rule("PEN012", "Pass the whole list to one query or mutation.")
def loop_of_transactions(facts: Facts, rule: Rule) -> Places:
    """A loop runs one transaction after another."""
    for body in facts.bodies_of("action"):
        for call in (one for one in body.calls if not isinstance(one.loop, ast.While | ast.AsyncFor | None)):
            run = _run_of(facts, body, call)
            if run is not None and not _has_outside(body, call):
                kind = run.method.removeprefix("run_")
                message = f"Each turn of the loop is a {kind} of its own: slow, and half of them stay if one fails."
                yield rule.at(body, call.node, message)


def _run_of(facts: Facts, body: Body, call: Call) -> Call | None:
    """The transaction that a call is, or a helper runs that does nothing else outside."""
    if _is_run(call, "run_query", "run_mutation"):
        return call
    inner = list[Call]()
    if isinstance(call.of, Local):
        inner = [one for one in body.calls if id(call.of.node) in one.branch]
    elif isinstance(call.of, Function) and call.of.kind is None:
        inner = facts.body(call.of).calls
    runs = [one for one in inner if _is_run(one, "run_query", "run_mutation")]
    return runs[0] if runs and all(one in runs or _is_harmless(one) for one in inner) else None


def _has_outside(body: Body, run: Call) -> bool:
    """Whether the loop also calls something outside: then its turns belong apart."""
    others = (one for one in body.calls if one.loop is run.loop and one is not run)
    return any(not _is_run(one) and not _is_harmless(one) for one in others)


@rule("PEN013")
def table_named(facts: Facts, rule: Rule) -> Places:
    """A table is not named."""
    for body, call in facts.calls_of(Word, "get", "patch", "delete", "replace"):
        if call.is_word("db"):
            least = 3 if call.method == "replace" else 2
            if len(call.node.args) < least and not any(isinstance(one, ast.Starred) for one in call.node.args):
                missing = "which row" if call.given and isinstance(call.given[0], Table) else "the table"
                message = f"ctx.db.{call.method} is not told {missing}."
                more = {"replace": ", row", "patch": ", …"}.get(call.method, "")
                fix = f"Write ctx.db.{call.method}(Table, row_id{more}): it then checks that the id is of that table."
                yield rule.at(body, call.node, message, fix)


@rule("PEN016", "Enqueue in that mutation: then both are stored, or neither is.")
def enqueue_after_transaction(facts: Facts, rule: Rule) -> Places:
    """Work is enqueued after the transaction instead of within it."""
    for body in facts.bodies:
        if kind_of(body) in {"query", "mutation", "workflow"}:
            continue
        last: Call | None = None
        for call in body.calls:
            run = _run_of(facts, body, call)
            is_run = (run is not None and run.method == "run_mutation") or _is_backend_run(call)
            if _enqueues(facts, call):
                if last and last.is_before(call):
                    line = last.node.lineno
                    message = f"If the process ends after line {line}, the rows are there and this work is not."
                    yield rule.at(body, call.node, message)
            elif is_run:
                last = call
            elif not _is_harmless(call):
                last = None


def _enqueues(facts: Facts, call: Call) -> bool:
    """Whether a call enqueues, or a helper does that calls nothing outside before."""
    if isinstance(call.of, Function) and call.of.kind is None:
        calls = facts.body(call.of).calls
        first = next((one for one in calls if _is_enqueue(one) or not _is_harmless(one)), None)
        return first is not None and _is_enqueue(first)
    return _is_enqueue(call)


def _is_enqueue(call: Call) -> bool:
    if call.is_word("scheduler", "run_after", "run_at") or call.is_word("outbox", "send"):
        return True
    return call.is_of(Pool, "enqueue", "enqueue_batch")


def _is_backend_run(call: Call) -> bool:
    """``backend.run_mutation(…)`` of a program that has no ctx."""
    is_backend = not isinstance(call.of, Method) or call.is_of(OpenBackend)
    return is_backend and getattr(call.node.func, "attr", "") == "run_mutation"


@rule("PEN001")
def missing_await(facts: Facts, rule: Rule) -> Places:
    """A call is not awaited."""
    for body in facts.bodies:
        for pending in body.floating:
            is_alone = isinstance(body.function.parents[pending.call], ast.Expr | ast.Return)
            is_plain = not body.used.intersection(pending.names) and (is_alone or not pending.is_task)
            edits = awaiting(body.function, pending.call) if is_plain and not pending.is_maker else []
            written = ast.unparse(pending.call.func)
            message = f"{pending.what or written}(…) is not awaited, so it does nothing."
            fix = f"Write await {written}(…)."
            if not body.function.is_async:
                fix = f"Write async def and await {written}(…), or take the ctx from penstock.sync."
            yield rule.at(body, pending.call, message, fix, edits)
