"""Rules about jobs, reactive tasks and outboxes."""

from __future__ import annotations

import ast
import re

from penstock.check.body import Body, Pool, Scan
from penstock.check.program import Function, keyword_of
from penstock.check.rule import Facts, Places, Rule, rule

_SENDS = {"post", "publish", "send_message", "sendmail", "send_email"}  # an HTTP PUT may be sent twice
_CLIENTS = ("requests.", "httpx.", "aiohttp.", "smtplib.", "stripe.", "boto3.", "twilio.")
_KEY = re.compile(r"idempot|fence|dedup|generation|\.id\b|(msg|message|event|request).?id", re.IGNORECASE)
_LONG = 10.0  # seconds


@rule("PEN017")
def idempotent(facts: Facts, rule: Rule) -> Places:
    """A handler that may run twice sends no idempotency key."""
    for function, why in _again(facts):
        body = facts.body(function)
        if _KEY.search(ast.unparse(function.node)):
            continue
        for call in body.calls:
            method = call.node.func.attr if isinstance(call.node.func, ast.Attribute) else ""
            if method in _SENDS and (call.of is None or _is_client(call.of)):
                yield rule.at(
                    function.module,
                    call.node,
                    f"{function.name} {why}: if its answer is lost it sends this again.",
                    "Send an idempotency key that is the same in each attempt, such as the id of the row or message.",
                )


def _is_client(of: object) -> bool:
    return str(getattr(of, "name", "")).startswith(_CLIENTS)


def _again(facts: Facts) -> list[tuple[Function, str]]:
    """Functions that run at least once, and why."""
    found = {one: _WHY[one.handles] for one in facts.program.functions if _handles(one)}
    for body in facts.bodies:
        for call in body.calls:
            if call.is_of(Pool, "enqueue", "enqueue_batch") and len(call.node.args) > 1 and _is_retried(call.of.of):
                target = facts.program.meaning(body.function.module, call.node.args[1])
                if isinstance(target, Function) and target.kind == "action":
                    found.setdefault(target, "is retried")
    return list(found.items())


_WHY = {"outbox": "gets messages of an outbox", "reactive_task": "handles a reactive task"}


def _handles(function: Function) -> bool:
    return function.handles in {"outbox", "reactive_task"} and function.kind == "action"


def _is_retried(pool: Pool) -> bool:
    given = [keyword_of(one, "retry") for one in pool.options]
    return any(one is not None and not (isinstance(one, ast.Constant) and one.value is False) for one in given)


@rule("PEN018")
def one_at_a_time(facts: Facts, rule: Rule) -> Places:
    """One job at a time, and long waits between attempts."""
    for module in facts.program.project.modules:
        if "max_parallelism" not in module.text:
            continue
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "workpool":
                continue
            limit, retry = keyword_of(node, "max_parallelism"), keyword_of(node, "default_retry")
            if isinstance(limit, ast.Constant) and limit.value == 1 and isinstance(retry, ast.Call):
                longest = _longest_wait(retry)
                if longest >= _LONG:
                    yield rule.at(
                        module,
                        retry,
                        f"A job of this pool may wait {longest:g} seconds for its next attempt, "
                        "and jobs behind it pass: the order is lost.",
                        "Take a shorter back-off, or an outbox, which keeps the order.",
                    )


def _longest_wait(retry: ast.Call) -> float:
    given = {"max_attempts": 5.0, "initial_backoff": 0.25, "base": 2.0}
    for one in retry.keywords:
        if one.arg in given and isinstance(one.value, ast.Constant) and isinstance(one.value.value, int | float):
            given[one.arg] = float(one.value.value)
    most = keyword_of(retry, "max_backoff")
    limit = (
        float(most.value) if isinstance(most, ast.Constant) and isinstance(most.value, int | float) else float("inf")
    )
    return float(min(limit, given["initial_backoff"] * given["base"] ** max(0.0, given["max_attempts"] - 2)))


@rule("PEN019")
def fails_openly(facts: Facts, rule: Rule) -> Places:
    """An outbox handler hides its failures."""
    for function in facts.program.functions:
        if function.handles != "outbox":
            continue
        for node in ast.walk(function.node):
            if isinstance(node, ast.ExceptHandler) and _is_wide(node) and not _raises(node):
                yield rule.at(
                    function.module,
                    node,
                    f"{function.name}: a message whose handler returns counts as delivered, and is lost here.",
                    "Let the error rise, so that it is tried again; or catch only the one that means it was delivered.",
                    head=True,
                )


def _is_wide(node: ast.ExceptHandler) -> bool:
    names = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(one is None or ast.unparse(one) in {"Exception", "BaseException"} for one in names)


def _raises(node: ast.ExceptHandler) -> bool:
    return any(isinstance(one, ast.Raise) for one in ast.walk(node))


@rule("PEN020")
def small_context(facts: Facts, rule: Rule) -> Places:
    """The context of on_complete has no limit."""
    for body in facts.bodies:
        for call in body.calls:
            context = keyword_of(call.node, "context") if call.is_of(Pool, "with_options") else None
            if context is not None and _grows(body, context):
                yield rule.at(
                    body.function.module,
                    context,
                    "This context holds rows of a query: it is stored with the job, and grows with the table.",
                    "Pass the id of one row, and read the rest in on_complete.",
                )


def _grows(body: Body, context: ast.expr) -> bool:
    """Whether an expression collects rows, or names what did."""
    names = {one.id for one in ast.walk(context) if isinstance(one, ast.Name)}
    kept = [one for one in ast.walk(body.function.node) if isinstance(one, ast.Assign)]
    made = [one.value for one in kept if isinstance(one.targets[0], ast.Name) and one.targets[0].id in names]
    inside = {one for node in (context, *made) for one in ast.walk(node)}
    return any(call.is_of(Scan, "collect") and call.node in inside for call in body.calls)
