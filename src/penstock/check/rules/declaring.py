"""Rules about public functions: their types, and who may call them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache

from penstock.check.body import Body
from penstock.check.nodes import arguments_of, calls_in, last_name, names_in, walk
from penstock.check.program import AnyDef, Ctx, Function, Program
from penstock.check.project import Module, Outside, Place
from penstock.check.rule import Facts, Places, Rule, rule

_ANYTHING = {"any", "dict", "list", "set", "tuple", "object"}
_DEEPEST = 3  # helpers that pass an argument on
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PEOPLE = (
    "user|account|owner|author|caller|creator|sender|member|person|customer|client|buyer|seller|guest|host|tenant|"
    "driver|student|teacher|patient|doctor|employee|manager|admin|reader|subscriber"
)
_INVENTED = re.compile(rf"(^|_)(email|username|login|({_PEOPLE})(_id)?)$")
_PROOFS = re.compile(r"(^|_)(token|secret|password|passphrase|pin|code|key|signature|nonce)(_|$)")


def _public(facts: Facts) -> list[Function]:
    return [one for one in facts.program.app_functions() if one.is_public]


@rule("PEN005", "Name a type that penstock can check, such as str, Id[Order], list[int] or a pydantic model.")
def missing_types(facts: Facts, rule: Rule) -> Places:
    """A public function does not say what it takes or gives."""
    for function in _public(facts):
        module, name = function.module, function.name
        for one in function.parameters[1:]:
            wrong, table = _not_checked(facts.program, module, one.annotation)
            if wrong:
                yield rule.at(module, one, f"{name}: argument {one.arg} {wrong}.")
            elif table:
                message = f"{name}: argument {one.arg} has a whole row, so a caller chooses every column of {table}."
                fix = f"Take each column that a caller may set, and an Id[{table}] if the row is there already."
                yield rule.at(module, one, message, fix)
        for star in filter(None, (function.node.args.vararg, function.node.args.kwarg)):
            yield rule.at(module, star, f"{name}: *{star.arg} takes anything.", "Name each argument with its type.")
        wrong, _ = _not_checked(facts.program, module, function.node.returns)
        if wrong:
            yield rule.at(module, function.node, f"{name}: its result {wrong}.", head=True)


def _not_checked(program: Program, module: Module, node: ast.expr | None) -> tuple[str, str]:
    """Why a type checks nothing, and a table whose rows it takes; empty if it checks something, and takes none."""
    if node is None:
        return "has no type", ""
    if isinstance(node, ast.Name) and node.id not in _ANYTHING and program.is_built_in(module, node):
        return "", ""
    waiting, table = [(module, node)], ""
    seen = set[ast.expr]()
    while waiting:
        place, one = waiting.pop()
        for found, kind in program.types(place, one):
            if kind in seen:  # Json = list["Json"] | str
                continue
            seen.add(kind)
            if isinstance(kind, ast.Subscript):
                if last_name(kind.value) not in {"Id", "Literal"}:
                    waiting.extend((found, part) for part in arguments_of(kind))
                continue
            name = _anything(program, found, kind)
            if name:
                return f"has {name}, which may be anything", ""
            row = program.table_of(found, kind)
            table = row.name if row else table
    return "", table


def _anything(program: Program, module: Module, node: ast.expr) -> str:
    """The name of a type that checks nothing: ``Any``, ``object``, a bare ``dict``."""
    found = program.meaning(module, node)
    if isinstance(found, Outside):
        top, _, name = found.name.rpartition(".")
        return name if top in {"typing", "typing_extensions"} and name.lower() in _ANYTHING else ""
    return node.id if isinstance(node, ast.Name) and node.id in _ANYTHING and found is None else ""


@rule("PEN006", "Write access=signed_in, another guard, or access=public if that is meant; or make it internal.")
def missing_guard(facts: Facts, rule: Rule) -> Places:
    """A public function says nothing about who may call it."""
    for function in _public(facts):
        if not _has_guard(function) and not _asks_who(facts, function):
            message = f"{function.name}: anyone who reaches the server may call it."
            yield rule.at(function.module, function.node, message, head=True)


def _has_guard(function: Function) -> bool:
    access = function.option("access")
    return access is not None and not (isinstance(access, ast.Constant) and access.value is None)


def _asks_who(facts: Facts, function: Function) -> bool:
    """Whether a function, or one that it calls, asks ``ctx.auth`` or ``ctx.check_access``, or has a guard."""
    return _is_wrapped(facts, function) or _asks_within(facts, function)


def _asks_within(facts: Facts, function: Function) -> bool:
    reached = [body for body, _ in facts.reach([facts.body(function)], through_declared=True).values()]
    return any(
        _looks_at_auth(body) or (body.function is not function and _refuses(facts.program, body.function))
        for body in reached
    )


def _is_wrapped(facts: Facts, function: Function) -> bool:
    """Whether a decorator of the program asks: itself, or with a helper."""
    for one in function.node.decorator_list:
        found = facts.program.meaning(function.module, one.func if isinstance(one, ast.Call) else one)
        if isinstance(found, Function | Place) and isinstance(found.node, AnyDef):
            helpers = (facts.program.meaning(found.module, one.func) for one in calls_in(found.node))
            asks = (_asks_within(facts, one) for one in helpers if isinstance(one, Function))
            if _names_auth(found.node) or any(asks):
                return True
    return False


def _refuses(program: Program, function: Function) -> bool:
    return _has_guard(function) and not program.is_penstock(function.module, function.option("access"), "public")


def _looks_at_auth(body: Body) -> bool:
    return any(call.is_of(Ctx, "check_access") or call.is_word("auth") for call in body.calls)


@rule("PEN007", "Decide by await ctx.auth.require(), which comes from a token that was checked.")
def caller_by_argument(facts: Facts, rule: Rule) -> Places:
    """Access is decided by an argument that a caller can invent."""
    answers = dict[Function, str]()  # of guards, which functions share
    for function in _public(facts):
        names = _identity_arguments(function)
        guard = _guard(facts, function)
        if isinstance(guard, Function):
            if guard not in answers:
                answers[guard] = _answers(guard, _identity_arguments(guard))
            used = answers[guard]
            access = function.option("access")
            if used and access and not _asks_who(facts, guard):
                yield rule.at(function.module, access, _message(function, used))
        elif guard is not None:
            given = {one.arg for one in guard.args.args[1:]} & names_in(guard.body)
            if given and not _names_auth(guard):
                yield rule.at(function.module, guard, _message(function, min(given)))
        elif names and _lets_in_many(facts.program, function) and not _asks_who(facts, function):
            for node, used in _refusals(facts, function, names):
                yield rule.at(function.module, node, _message(function, used))


def _lets_in_many(program: Program, function: Function) -> bool:
    """Whether the guard, if there is one, leaves it to the function to look at who calls."""
    place, access = program.behind(function.module, function.option("access"))
    if access is None or program.is_penstock(place, access, "public", "signed_in"):
        return True
    return last_name(access) in {"public", "signed_in"}  # of a decorator elsewhere


def _identity_arguments(function: Function) -> set[str]:
    """The arguments that name somebody: ``owner_id``, ``ownerId``."""
    return {one.arg for one in function.parameters[1:] if _names_somebody(one.arg)}


@cache
def _names_somebody(argument: str) -> bool:
    return _INVENTED.search(_HUMP.sub("_", argument).lower()) is not None


def _message(function: Function, name: str) -> str:
    return f"{function.name}: a caller may send any {name}, also that of somebody else."


def _guard(facts: Facts, function: Function) -> ast.Lambda | Function | None:
    value = function.option("access")
    if isinstance(value, ast.Name):
        found = facts.program.meaning(function.module, value)
        if isinstance(found, Function):
            return found
        value = getattr(found.node, "value", None) if isinstance(found, Place) else value
    return value if isinstance(value, ast.Lambda) else None


def _names_auth(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "auth" for one in walk(node))


def _refusals(
    facts: Facts, function: Function, names: set[str], columns: Collection[str] = (), depth: int = 0
) -> Iterator[tuple[ast.expr, str]]:
    """Conditions by which a function, or a helper that it calls, refuses a call, each with the argument it looks at."""
    kept = function.assignments
    rows = _rows_by_argument(kept, names)
    asked = dict[ast.Call, ast.expr]()
    for node in function.statements:
        if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and _raises(node)):
            looked_at = names_in(node.test)
            named = [value for name in kept if name in looked_at for value in kept[name]]
            for test in (node.test, *named):
                if used := _argument_in(test, names, columns) or _deciding_argument(function, test, rows):
                    yield test, used
                    break
            asked.update((one, node.test) for one in calls_in(node.test))
    for call in facts.body(function).calls if depth < _DEEPEST else ():
        helper = call.of if isinstance(call.of, Function) and call.of.kind is None else None
        given = dict(zip((one.arg for one in helper.parameters), call.node.args, strict=False)) if helper else {}
        passed = {name: one.id for name, one in given.items() if isinstance(one, ast.Name) and one.id in names}
        if helper and passed:
            held = {name for name, one in given.items() if isinstance(one, ast.Attribute)}
            if call.node in asked and (used := _answers(helper, set(passed), held)):
                yield asked[call.node], passed[used]
                continue
            found = next(_refusals(facts, helper, set(passed), held, depth + 1), None)
            if found:
                yield call.node, passed.get(found[1], min(passed.values()))


def _rows_by_argument(kept: dict[str, list[ast.expr]], names: set[str]) -> dict[str, str]:
    """The names of rows that are found by one of these arguments through an index, each with the argument."""
    found = dict[str, str]()
    for name, values in kept.items():
        for call in (one for value in values for one in calls_in(value)):
            is_range = isinstance(call.func, ast.Attribute) and call.func.attr == "with_index"
            given = {one.value.id for one in call.keywords if isinstance(one.value, ast.Name)} & names
            if is_range and given:
                found[name] = min(given)
    return found


def _deciding_argument(function: Function, test: ast.expr, rows: dict[str, str]) -> str:
    """The argument by which the row was found whose column a condition looks at, if nothing proves who calls."""
    if any(_PROOFS.search(_HUMP.sub("_", one.arg).lower()) for one in function.parameters[1:]):
        return ""
    looked_at = (
        one.value.id for one in walk(test) if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name)
    )
    return next((rows[one] for one in looked_at if one in rows), "")


def _answers(function: Function, names: set[str], columns: Collection[str] = ()) -> str:
    """The argument by which a function answers yes or no."""
    rows = _rows_by_argument(function.assignments, names)
    tests = (_argument_in(one, names, columns) or _deciding_argument(function, one, rows) for one in function.results)
    return next((used for used in tests if used), "")


def _raises(node: ast.If) -> bool:
    """Whether it refuses a caller. An ``==`` that raises does not: it finds what is taken already."""
    is_same = isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Eq)
    raising = node.orelse if is_same else (*node.body, *node.orelse)
    return any(isinstance(one, ast.Raise) for one in raising)


def _argument_in(test: ast.expr, names: set[str], columns: Collection[str]) -> str:
    """The argument that a condition compares with a column, or with an argument that holds one."""
    for one in walk(test):
        sides = [one.left, *one.comparators] if isinstance(one, ast.Compare) else []
        plain = (_without_methods(side) for side in sides)
        used = next((side.id for side in plain if isinstance(side, ast.Name) and side.id in names), "")
        if used and any(_is_column(part, names, columns) for side in sides for part in walk(side)):
            return used
    return ""


def _without_methods(node: ast.expr) -> ast.expr:
    """The object that methods are called of: ``email`` of ``email.strip().lower()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def _is_column(node: ast.AST, names: set[str], columns: Collection[str]) -> bool:
    if isinstance(node, ast.Attribute):
        of = _without_methods(node.value)
        return not (isinstance(of, ast.Name) and of.id in names)
    return isinstance(node, ast.Name) and node.id in columns
