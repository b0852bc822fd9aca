"""The registry: from a name to its function.

Owns the names of one app. Leaves who may call what to `calls/run/dispatch`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.errors import DeclarationError
from penstock.functions.function import AnyFunction

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class Registry:
    """All functions of an app, by name."""

    def __init__(self) -> None:
        self._functions: dict[str, AnyFunction] = {}

    def add(self, function: AnyFunction) -> None:
        """Take in a function.

        Raises:
            DeclarationError: Its name cannot be called, or is taken.
        """
        if not _NAME.fullmatch(function.name):
            raise DeclarationError(
                f"{function.name!r} is not a function name.", fix="Names have the form module:function."
            )
        known = self._functions.setdefault(function.name, function)
        if known is not function:
            raise DeclarationError(
                f"Two functions are named {function.name}.",
                fix="Rename one of them; if it is one function, its module was imported under two names.",
            )

    def find(self, path: str) -> AnyFunction | None:
        """The function of this name; slashes in the module part stand for dots."""
        return self._functions.get(path) or self._functions.get(path.replace("/", "."))

    def kinds(self) -> dict[str, str]:
        """The kind of each function, by name."""
        return {function.name: function.kind.value for function in self}

    def __iter__(self) -> Iterator[AnyFunction]:
        return iter(self._functions.values())
