"""Rules about jobs, reactive tasks and outboxes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Any, TypeGuard

from penstock.check.body import Body, Call, Comprehension, Loop
from penstock.check.nodes import calls_in, parts, walk
from penstock.check.program import Ctx, Function, Program, keyword_of
from penstock.check.project import Module, Outside
from penstock.check.rule import Facts, Places, Rule, rule
from penstock.check.values import Pool, Scan

_SENDS = {"post", "publish", "send_message", "sendmail", "send_email"}  # an HTTP PUT may be sent twice
_MAKES = ("stripe.", "twilio.")  # packages whose ``create`` pays, or sends a message
_CLIENTS = ("requests.", "httpx.", "aiohttp.", "smtplib.", "stripe.", "boto3.", "twilio.")
_KEY = re.compile(r"idempot|work\.key|fence|dedup|generation|(msg|message|event|request|doc).?id", re.IGNORECASE)
_ID = re.compile(r"\.id\b")  # a key only where it is sent: elsewhere it may be anything
_NEW_KEY = re.compile(r"[\w-]*idempot[\w-]*'?(:|,| =) (str\()?(uuid\.)?uuid[14]\(", re.IGNORECASE)  # in each attempt
_RETRIES = ("retry_actions_by_default", "retry")  # what a job says goes before what its pool does
_LONG = 10.0  # seconds
_DEEPEST = 3  # helpers that pass rows on
_WIDE = {"Exception", "BaseException"}


@rule("PEN017", "Send an idempotency key that is the same in each attempt, such as the id of the row or message.")
def idempotent(facts: Facts, rule: Rule) -> Places:
    """A handler that may run twice sends no idempotency key."""
    for function, why in _again(facts):
        reached = [one for one, _ in facts.reach([facts.body(function)]).values()]
        sent = [(body, call) for body in reached for call in body.calls if _sends(call)]
        if not sent or any(one.function.says(_KEY, _NEW_KEY) for one in reached):
            continue
        for body, call in sent:
            if not body.function.says(_ID):
                message = f"{function.name} {why}: if its answer is lost it sends this again."
                yield rule.at(body, call.node, message)


def _sends(call: Call) -> bool:
    method = call.node.func.attr if isinstance(call.node.func, ast.Attribute) else ""
    if method.startswith("create") and str(getattr(call.of, "name", "")).startswith(_MAKES):
        return True  # also create_async
    return (method in _SENDS or _posts(call.node, method)) and (call.of is None or _is_client(call.of))


def _posts(call: ast.Call, method: str) -> bool:
    """``client.request("POST", …)``."""
    first = call.args[0] if call.args else keyword_of(call, "method")
    return method == "request" and isinstance(first, ast.Constant) and str(first.value).upper() in {"POST", "PATCH"}


def _is_client(of: object) -> bool:
    name = str(getattr(of, "name", ""))
    return name.startswith(_CLIENTS) or "()" in name


def _again(facts: Facts) -> list[tuple[Function, str]]:
    """Functions that run at least once, and why."""
    found = {one: _WHY[one.handles] for one in facts.program.functions if _handles(one)}
    for _body, call in facts.calls_of(Pool, "enqueue", "enqueue_batch"):
        if len(call.node.args) > 1 and _is_retried(call.of.of):
            target = call.given[1]
            if isinstance(target, Function) and target.kind == "action":
                found.setdefault(target, "is retried")
    for _body, call in facts.calls_of(Ctx, "run_action"):
        if call.of.of.kind == "workflow" and call.given and not _is_at_most_once(call.of.of):
            target = call.given[0]
            if isinstance(target, Function) and target.kind == "action":
                found.setdefault(target, "is a step of a workflow")
    return list(found.items())


_WHY = {
    "outbox": "gets messages of an outbox", "reactive_task": "handles a reactive task", "cron": "is retried",
}  # fmt: skip


def _handles(function: Function) -> bool:
    is_once = function.handles == "cron" and function.option("retry") is None
    return function.handles in _WHY and function.kind == "action" and not is_once


def _is_retried(pool: Pool) -> bool:
    given = [found for word in _RETRIES for one in pool.options if (found := keyword_of(one, word))]
    return bool(given) and not (isinstance(given[-1], ast.Constant) and given[-1].value is False)


def _is_at_most_once(ctx: Ctx) -> bool:
    """Whether steps made through a ctx never begin a second time: ``ctx.with_options(retry=False)``."""
    given = None if ctx.options is None else keyword_of(ctx.options, "retry")
    return isinstance(given, ast.Constant) and given.value is False


@rule("PEN018", "Take a shorter back-off, or an outbox, which keeps the order.")
def one_at_a_time(facts: Facts, rule: Rule) -> Places:
    """One job at a time, and long waits between attempts."""
    for module in facts.program.project.modules:
        for node in module.calls_of("workpool", "with_options") if "retry" in module.text else ():
            retry = _retry_of_one(facts.program, module, node)
            if retry is None:
                continue
            place, policy = facts.program.behind(module, retry)
            longest = _longest_wait(facts.program, place, policy) if isinstance(policy, ast.Call) else 0
            if longest >= _LONG:
                lost = "jobs behind it pass: the order is lost"
                message = f"A job of this pool may wait {longest:g} seconds for its next attempt, and {lost}."
                yield rule.at(module, retry, message)


def _retry_of_one(program: Program, module: Module, call: ast.Call) -> ast.expr | None:
    """The policy that a call gives to a pool that runs one job at a time."""
    pool: ast.expr | None = call
    if isinstance(call.func, ast.Attribute) and call.func.attr == "with_options":
        pool = program.behind(module, call.func.value)[1]
    limit = keyword_of(pool, "max_parallelism") if isinstance(pool, ast.Call) else None
    word = "default_retry" if pool is call else "retry"
    return keyword_of(call, word) if _number(program, module, limit) == 1 else None


def _number(program: Program, module: Module, node: ast.expr | None) -> float | None:
    """A number, or the seconds of a timedelta, if it can be read."""
    module, node = program.behind(module, node)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Call) and program.meaning(module, node.func) == Outside("datetime.timedelta"):
        parts: dict[str, Any] = {
            one.arg: one.value.value for one in node.keywords if one.arg and isinstance(one.value, ast.Constant)
        }
        with suppress(TypeError, OverflowError):
            return timedelta(**parts).total_seconds()
    return None


def _longest_wait(program: Program, module: Module, retry: ast.Call) -> float:
    """The longest wait of a policy in seconds, as far as it can be read."""
    given = {"max_attempts": 5.0, "initial_backoff": 0.25, "base": 2.0, "max_backoff": inf}
    written = [*zip(given, retry.args, strict=False), *((one.arg, one.value) for one in retry.keywords)]
    given |= {name: found for name, one in written if name and (found := _number(program, module, one)) is not None}
    first = retry.args[0] if retry.args else None
    waits = first.elts if isinstance(first, ast.List | ast.Tuple) else [first]
    wait = max((_number(program, module, one) or 0.0 for one in waits), default=0.0)
    match retry.func:
        case ast.Attribute(attr="fixed" | "series"):
            return wait
        case ast.Attribute(attr="linear"):
            return wait * (given["max_attempts"] - 1)
        case ast.Attribute(attr="cron"):  # five fields: it is due once a minute at most
            return 60.0 if isinstance(first, ast.Constant) and len(str(first.value).split()) == 5 else 0.0  # noqa: PLR2004
    try:
        last = given["initial_backoff"] * given["base"] ** max(0.0, given["max_attempts"] - 2)
    except OverflowError:
        last = inf
    return float(min(given["max_backoff"], last))


@rule("PEN019", "Let the error rise, so that it is tried again; or catch only the one that means it was delivered.")
def fails_openly(facts: Facts, rule: Rule) -> Places:
    """An outbox handler hides its failures."""
    told = set[ast.AST]()  # handlers may share a helper
    for function in facts.program.functions:
        if function.handles != "outbox":
            continue
        for module, node in _delivering(facts, function):
            if node not in told and _hides(node, facts.program, module):
                told.add(node)
                message = f"{function.name}: a message whose handler returns counts as delivered, and is lost here."
                yield rule.at(module, node, message, head=True)


def _delivering(facts: Facts, function: Function) -> Iterator[tuple[Module, ast.AST]]:
    """The calls in a handler, and in its helpers that answer nothing: they cannot say that they failed."""
    waiting, seen = [function], set[Function]()
    while waiting:
        one = waiting.pop()
        seen.add(one)
        if one is not function and one.results:
            continue
        yield from ((one.module, node) for node in one.nodes)
        called = (call.of for call in facts.body(one).calls)
        waiting.extend(of for of in called if isinstance(of, Function) and of.kind is None and of not in seen)


def _hides(node: ast.AST, program: Program, module: Module) -> TypeGuard[ast.ExceptHandler | ast.Call]:
    """Whether it catches every error, and raises none."""
    if isinstance(node, ast.Call):
        suppresses = program.meaning(module, node.func) == Outside("contextlib.suppress")
        return suppresses and any(ast.unparse(one) in _WIDE for one in node.args)
    if not isinstance(node, ast.ExceptHandler) or not _is_wide(node):
        return False
    return not any(isinstance(one, ast.Raise) for one in walk(node))


def _is_wide(node: ast.ExceptHandler) -> bool:
    names = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(one is None or ast.unparse(one) in _WIDE for one in names)


@rule("PEN020", "Pass the id of one row, and read the rest in on_complete.")
def small_context(facts: Facts, rule: Rule) -> Places:
    """The context of on_complete has no limit."""
    for body, call in facts.calls_of(Pool, "with_options"):
        context = keyword_of(call.node, "context")
        if context is not None and _grows(facts, body, context):
            message = "This context holds rows of a query: it is stored with the job, and grows with the table."
            yield rule.at(body, context, message)


def _grows(facts: Facts, body: Body, context: ast.expr, depth: int = 0) -> bool:
    """Whether an expression collects rows, or names what did."""
    kept = body.function.assignments
    helpers = {call.node: call.of for call in body.calls if isinstance(call.of, Function) and depth < _DEEPEST}
    filled = {name for loop, rows in body.lists if rows.end in {"collect", "iterate"} for name in _lists_of(loop)}
    ends: set[ast.AST] = {call.node for call in body.calls if call.is_of(Scan, "collect")}
    ends |= {node for node, rows in body.lists if rows.end == "iterate"}
    waiting, seen = [context], set[str]()
    while waiting:
        node = waiting.pop()
        if node in ends or (isinstance(node, ast.Name) and node.id in filled):
            return True
        if isinstance(node, ast.Name) and node.id in kept and node.id not in seen:
            seen.add(node.id)
            waiting.extend(kept[node.id])
        elif isinstance(node, ast.Call) and node in helpers:
            inner = facts.body(helpers[node])
            if any(_grows(facts, inner, one, depth + 1) for one in inner.function.results):
                return True
        elif isinstance(node, ast.Compare | ast.Subscript) or (isinstance(node, ast.Call) and not _is_list(node)):
            continue  # such as len(rows), rows[:5]
        elif isinstance(node, Comprehension):
            waiting.append(node.generators[0].iter)
        else:
            waiting.extend(one for one in parts(node) if isinstance(one, ast.expr))
    return False


def _lists_of(loop: ast.AST) -> set[str]:
    """The lists that a loop appends to."""
    if not isinstance(loop, Loop):
        return set()
    appends = (one.func for one in calls_in(loop) if isinstance(one.func, ast.Attribute))
    return {one.value.id for one in appends if one.attr in {"append", "add"} and isinstance(one.value, ast.Name)}


def _is_list(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id in {"list", "tuple", "set", "dict", "sorted", "map"}
