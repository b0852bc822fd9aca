"""What a value in the body of a function may be: a query, a pool, rows, a call that was not awaited.

Nothing changes one. They are not frozen, as a frozen one takes three times as long to make.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from penstock.check.program import Ctx, Table
from penstock.check.project import Module


@dataclass(eq=False, slots=True)
class Word:
    """What hangs on a ctx: ``ctx.db``."""

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
    """A call that runs when it is awaited, with the name of what it calls if that is not as it is written.

    Attributes:
        gives: What it is once it is awaited.
        other: Another call that it may be instead.
        names: The names that it was kept under.
        is_many: Whether it is a list or a generator of such calls.
        is_task: Whether asyncio runs it, such as a task, which has methods of its own.
    """

    call: ast.Call
    what: str = ""
    gives: Any = None
    other: Pending | None = None
    names: tuple[str, ...] = ()
    is_many: bool = False
    is_task: bool = False


@dataclass(eq=False, slots=True)
class Maker:
    """A function within that gives a call of which it awaits nothing, or a partial one with its first arguments."""

    of: Any
    given: tuple[Any, ...] = ()


@dataclass(eq=False, slots=True)
class Rows:
    """Rows of a query: all of them, some, or one."""

    scan: Scan
    end: str
    call: ast.Call | None  # None if a loop reads them
