"""The kinds of values in the body of a function: a query, a pool, rows, a call that was not awaited.

Nothing changes one. They are not frozen, as a frozen one takes three times as long to make.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import Any

from penstock.check.program import AnyDef, Ctx, Program, Table
from penstock.check.project import Module, Place

WORDS = {"db", "jobs", "scheduler", "outbox", "auth", "random", "work"}


@dataclass(eq=False, slots=True)
class Word:
    """An attribute of a ctx: ``ctx.db``."""

    ctx: Ctx
    name: str


@dataclass(frozen=True, slots=True)
class OpenBackend:
    """An open backend, or a `TestApp`: what a program has that calls from outside."""


@dataclass(eq=False, slots=True)
class Scan:
    """A query that is being built."""

    ctx: Ctx
    table: Table | None
    index: str = ""
    equal: tuple[str, ...] = ()
    is_bounded: bool = False  # by an equal value or a range
    filters: tuple[ast.Call, ...] = ()
    is_endless: bool = False  # only by where it begins


@dataclass(eq=False, slots=True)
class Pool:
    """A pool, with the options that were set on the way."""

    name: str
    options: tuple[ast.Call, ...] = ()


@dataclass(eq=False, slots=True)
class Instance:
    """An object of a class of the program."""

    module: Module
    owner: ast.ClassDef


@dataclass(eq=False, slots=True)
class Local:
    """An async function within the function that uses its ctx."""

    node: ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Entries:
    """The values of a dictionary that is written out."""

    values: dict[Any, Any]

    def at(self, key: ast.expr | None) -> Any:
        """The value of a key; the first known one if nobody knows the key."""
        if isinstance(key, ast.Constant):
            return self.values.get(key.value)
        return next((one for one in self.values.values() if one is not None), None)


@dataclass(eq=False, slots=True)
class Method:
    """A method of one of these, before it is called."""

    of: Any
    name: str


@dataclass(eq=False, slots=True)
class Pending:
    """A call that runs when it is awaited, with the name of what it calls if that is not as it is written."""

    call: ast.Call
    what: str = ""
    gives: Any = None  # what it is once it is awaited
    other: Pending | None = None  # another call that it may be instead
    names: tuple[str, ...] = ()  # the names that it was kept under
    is_many: bool = False  # whether it is a list or a generator of such calls
    is_task: bool = False  # whether asyncio runs it, such as a task, which has methods of its own
    is_maker: bool = False  # whether the call itself gives many, and an await of it would not help


@dataclass(eq=False, slots=True)
class Maker:
    """A function within that returns a call without awaiting it, or a partial one with its first arguments."""

    of: Any
    given: tuple[Any, ...] = ()


@dataclass(eq=False, slots=True)
class Rows:
    """Rows of a query: all of them, some, or one."""

    scan: Scan
    end: str
    call: ast.Call | None  # None if a loop reads them


def many(value: Any) -> Pending | None:
    """A list of calls."""
    return replace(value, names=(), is_many=True) if isinstance(value, Pending) else None


def is_many(value: Any) -> bool:
    """Whether it is a list of calls."""
    return isinstance(value, Pending) and value.is_many


def element(value: Any) -> Pending | None:
    """One of the calls in a list of them."""
    return replace(value, names=(), is_many=False) if is_many(value) else None


def attributes_of(program: Program, module: Module, owner: ast.ClassDef) -> dict[str, Any]:
    """The parts of a ctx that objects of a class keep, by the names of their attributes: ``ctx``, ``db``."""
    found: dict[str, Any] = {}
    lineage = [(place, node) for place, one in program.lineage(module, owner) for node in one.body]
    for place, node in reversed(lineage):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = program.ctx_of(place, node.annotation)
        if isinstance(node, AnyDef) and node.name == "__init__":
            given = {one.arg: program.ctx_of(place, one.annotation) for one in node.args.args}
            for one in node.body:
                if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Attribute):
                    found[one.targets[0].attr] = _hanging(program, place, one.value, given)
    return found


def _hanging(program: Program, module: Module, node: ast.expr, given: dict[str, Ctx | None]) -> Any:
    if isinstance(node, ast.Name):
        return given.get(node.id)
    if isinstance(node, ast.Call) and any(isinstance(one, ast.Name) and given.get(one.id) for one in node.args):
        made = program.meaning(module, node.func)  # self.lots = LotReader(ctx)
        if isinstance(made, Place) and isinstance(made.node, ast.ClassDef):
            return Instance(made.module, made.node)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        ctx = given.get(node.value.id)
        return Word(ctx, node.attr) if ctx and node.attr in WORDS else None
    return None
