"""One use of an app as a component of another: its name, and its own functions and tables in that use.

Owns the names that things of a component have in the program, and what its ctx finds under the objects of its code:
functions and tables of this use. `api/components` fills it, when `App.use` is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

from penstock.errors import ContextError, DeclarationError
from penstock.schema.table import Table


class Named(Protocol):
    """A pool, as a component knows it."""

    name: str


T = TypeVar("T", bound=Callable[..., Any] | Named)

SEPARATOR = "/"  # between the name of a component and the names of its things
_NAME = re.compile(r"[a-z](?:_?[a-z0-9])*")
_MOST_NAME = 20


class Component:
    """One use of an app in a program, as `App.use` returns it: ``comments[add]`` is the function `add` of this use.

    Attributes:
        name: Its name in the program: ``comments``; of a component of a component ``blog/comments``.
        tables: The tables of this use, by those of the app and by themselves.
        functions: The functions of this use, by those of the app.
        pools: The pools of this use, by those of the app.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tables: dict[type[Table], type[Table]] = {}
        self.functions: dict[Any, Any] = {}
        self.pools: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"<component {self.name}>"

    def __getitem__(self, declared: T) -> T:
        """The function or the pool of this use, for the program to run, schedule and enqueue.

        Args:
            declared: A function or a pool of the app that was used.

        Raises:
            ContextError: It is neither a function nor a pool of that app.
        """
        found: T | None = own_function(self, declared, None)
        if found is None and isinstance(declared, Hashable):
            found = self.pools.get(declared)
        if found is None:
            name = getattr(declared, "name", repr(declared))
            raise ContextError(
                f"{name} is neither a function nor a pool of component {self.name}.", fix="Pass one of its app's."
            )
        return found

    def prefix(self, name: str) -> str:
        """The name in the program of a thing that the component calls so."""
        return f"{self.name}{SEPARATOR}{name}"

    def table(self, table: type[Table]) -> type[Table]:
        """The table of this use; `ContextError` if it is none of the component's."""
        given: object = table
        found = self.tables.get(table) if isinstance(given, type) else None
        if found is None:
            name = getattr(table, "__name__", repr(table))
            raise ContextError(
                f"{name} is not a table of component {self.name}, whose ctx reaches its own tables only.",
                fix=f"Pass what it needs as an argument; or name the table in tables= of the component's App: {name}.",
            )
        return found


def own_name(component: Component | None, name: str) -> str:
    """The name in the program of a thing, as the code of a component says it; the program's own as they are."""
    return name if component is None else component.prefix(name)


def own_function(component: Component | None, function: Any, otherwise: Any = ...) -> Any:
    """The function that the code of a component means; any other one as it is, or what is given in its place."""
    otherwise = function if otherwise is ... else otherwise
    if component is None or not isinstance(function, Hashable):
        return otherwise
    return component.functions.get(function, otherwise)


def check_component_name(name: object) -> str:
    """Refuse a name that no component can have."""
    if not isinstance(name, str) or not is_component_name(name):
        raise DeclarationError(
            f"A component cannot be called {name!r}.",
            fix=f"Use lower-case letters, digits and single underscores, at most {_MOST_NAME}, a letter first: its "
            "tables begin with it.",
        )
    if name.startswith(("penstock", "pg_", "sqlite_")):
        raise DeclarationError(f"The component name {name!r} is reserved.", fix="Choose another name.")
    return name


def is_component_name(name: str) -> bool:
    """Whether a text has the form of a component's name."""
    return len(name) <= _MOST_NAME and _NAME.fullmatch(name) is not None


def short_name(name: object) -> Any:
    """A name without the components before it."""
    return name.rpartition(SEPARATOR)[2] if isinstance(name, str) else name
