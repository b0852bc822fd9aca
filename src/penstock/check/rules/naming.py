"""The rule that keywords which name columns name some: type checkers cannot see these."""

from __future__ import annotations

import ast
from difflib import get_close_matches

from penstock.check.body import Call
from penstock.check.program import Index, Program, Table
from penstock.check.project import Module, Place
from penstock.check.rule import Facts, Places, Rule, rule
from penstock.check.values import Scan

_DEEPEST = 10  # classes that derive from each other


@rule("PEN021")
def named(facts: Facts, rule: Rule) -> Places:
    """A keyword names no column."""
    for body in facts.bodies:
        module = body.function.module
        for call in body.calls:
            owner, columns = _columns(facts.program, module, call)
            for one in call.node.keywords if columns else ():
                if one.arg and one.arg not in columns:
                    near = get_close_matches(one.arg, columns, 1) or columns
                    fix = f"Its columns are {', '.join(columns)}." if near is columns else f"Did you mean {near[0]}?"
                    yield rule.at(module, one, f"{owner} has no column {one.arg}.", fix)


def _columns(program: Program, module: Module, call: Call) -> tuple[str, list[str]]:
    """The table or index whose columns a call names, and these; none if nobody knows them."""
    first = call.node.args[0] if call.node.args else None
    if call.is_word("db", "patch"):
        table = program.table_of(module, first)
        return (table.name, _fields(program, table.module, table.node) or []) if table else ("", [])
    if call.is_of(Scan, "with_index") and isinstance(first, ast.Attribute):
        index = _index(program.table_of(module, first.value), first.attr)
        return (f"Index {first.attr}", [*index.columns]) if index else ("", [])
    return "", []


def _index(table: Table | None, name: str) -> Index | None:
    index = table.indexes.get(name) if table else None
    declared = index.node.value if index and isinstance(index.node, ast.Assign) else None
    is_whole = isinstance(declared, ast.Call) and all(isinstance(one, ast.Constant) for one in declared.args)
    return index if is_whole else None


def _fields(program: Program, module: Module, node: ast.ClassDef, depth: int = 0) -> list[str] | None:
    """The fields of a class and of those it derives from; None if one of these is in no file of the program."""
    found: list[str] = []
    for base in node.bases:
        if program.is_penstock(module, base, "Table", "UserTable"):
            continue
        place = program.meaning(module, base)
        if not isinstance(place, Place | Table) or not isinstance(place.node, ast.ClassDef) or depth > _DEEPEST:
            return None
        inner = _fields(program, place.module, place.node, depth + 1)
        if inner is None:
            return None
        found += inner
    annotated = (one.target for one in ast.walk(node) if isinstance(one, ast.AnnAssign))
    return [*found, *(one.id for one in annotated if isinstance(one, ast.Name))]
