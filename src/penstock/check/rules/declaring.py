"""Rules about public functions: their types, and who may call them."""

from __future__ import annotations

import ast
import re

from penstock.check.body import Body, Word
from penstock.check.program import Function, Program
from penstock.check.project import Module, Outside, Place
from penstock.check.rule import Facts, Places, Rule, rule

_ANYTHING = {"dict", "list", "set", "tuple", "object"}
_INVENTED = re.compile(r"(^|_)(email|user|user_id|username|login|account|account_id|owner|owner_id|author|caller)$")


def _public(facts: Facts) -> list[Function]:
    return [one for one in facts.program.declared() if one.is_public and not one.handles]


@rule("PEN005")
def typed(facts: Facts, rule: Rule) -> Places:
    """A public function does not say what it takes or gives."""
    for function in _public(facts):
        module, name = function.module, function.name
        for one in function.parameters[1:]:
            wrong = _not_checked(facts.program, module, one.annotation)
            if wrong:
                yield rule.at(module, one, f"{name}: argument {one.arg} {wrong}.", _TYPE_FIX)
            elif facts.program.table_of(module, one.annotation):
                table = ast.unparse(one.annotation) if one.annotation else ""
                yield rule.at(
                    module,
                    one,
                    f"{name}: argument {one.arg} is a whole row, so a caller chooses every column of {table}.",
                    f"Take an Id[{table}] and the columns that a caller may set.",
                )
        given = (function.node.args.vararg, function.node.args.kwarg)
        for star in given:
            if star is not None:
                yield rule.at(module, star, f"{name}: *{star.arg} takes anything.", "Name each argument with its type.")
        wrong = _not_checked(facts.program, module, function.node.returns)
        if wrong:
            yield rule.at(module, function.node, f"{name}: its result {wrong}.", _TYPE_FIX, head=True)


_TYPE_FIX = "Name a type that penstock can check, such as str, Id[Order], list[int] or a pydantic model."


def _not_checked(program: Program, module: Module, node: ast.expr | None) -> str:
    """Why a type checks nothing; empty if it checks something."""
    if node is None:
        return "has no type"
    for one in ast.walk(node):
        found = program.meaning(module, one) if isinstance(one, ast.Name | ast.Attribute) else None
        if isinstance(found, Outside) and found.name in {"typing.Any", "typing_extensions.Any"}:
            return "is Any, which checks nothing"
    bare = node.id if isinstance(node, ast.Name) and node.id in _ANYTHING else ""
    return f"is a bare {bare}, which may hold anything" if bare and program.meaning(module, node) is None else ""


@rule("PEN006")
def guarded(facts: Facts, rule: Rule) -> Places:
    """A public function says nothing about who may call it."""
    for function in _public(facts):
        if function.option("access") is None and not _asks_who(facts, function):
            yield rule.at(
                function.module,
                function.node,
                f"{function.name}: whoever reaches the server may call it.",
                "Write access=signed_in, another guard, or access=public if that is meant; or make it internal.",
                head=True,
            )


def _asks_who(facts: Facts, function: Function) -> bool:
    """Whether a function, or a helper that it calls, looks at ``ctx.auth``."""
    reached = [body for body, _ in facts.reached([facts.body(function)]).values()]
    return any(_looks_at_auth(body) for body in reached)


def _looks_at_auth(body: Body) -> bool:
    return any(call.is_of(Word) and call.of.of.name == "auth" for call in body.calls)


@rule("PEN007")
def invented(facts: Facts, rule: Rule) -> Places:
    """Access is decided by an argument that a caller can invent."""
    for function in _public(facts):
        names = {one.arg for one in function.parameters[1:] if _INVENTED.search(one.arg)}
        guard = _guard(facts, function)
        if guard is not None:
            found = {one.id for one in ast.walk(guard.body) if isinstance(one, ast.Name)}
            given = {one.arg for one in guard.args.args[1:]} & found
            if given and not _names_auth(guard):
                yield rule.at(function.module, guard, _told(function, min(given)), _INVENTED_FIX)
        elif names and not _asks_who(facts, function):
            for node in ast.walk(function.node):
                used = _decides(node, names) if isinstance(node, ast.If) else ""
                if used and isinstance(node, ast.If):
                    yield rule.at(function.module, node.test, _told(function, used), _INVENTED_FIX)


_INVENTED_FIX = "Decide by await ctx.auth.require(), which comes from a token that was checked."


def _told(function: Function, name: str) -> str:
    return f"{function.name}: a caller may send any {name}, also that of somebody else."


def _guard(facts: Facts, function: Function) -> ast.Lambda | None:
    value = function.option("access")
    if isinstance(value, ast.Name):
        found = facts.program.meaning(function.module, value)
        value = getattr(found.node, "value", None) if isinstance(found, Place) else value
    return value if isinstance(value, ast.Lambda) else None


def _names_auth(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "auth" for one in ast.walk(node))


def _decides(node: ast.If, names: set[str]) -> str:
    """The argument by which a condition refuses a call; empty if it does not."""
    refuses = any(isinstance(one, ast.Raise) for one in (*node.body, *node.orelse))
    compared = [one for one in ast.walk(node.test) if isinstance(one, ast.Compare)]
    sides = [side for one in compared for side in (one.left, *one.comparators)]
    found = [one.id for one in sides if isinstance(one, ast.Name) and one.id in names]
    columns = any(isinstance(one, ast.Attribute) for one in ast.walk(node.test))
    return found[0] if refuses and found and columns else ""
