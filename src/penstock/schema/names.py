"""Names of tables, fields and indexes: which of them SQL takes as they are, and what a class is called there.

Owns that no two tables in one module have one name.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from types import CodeType
from weakref import ref

from penstock.errors import DeclarationError
from penstock.observe.places import place

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_MAX_NAME = 48


def check_name(what: str, name: str) -> None:
    """Refuse what SQL would have to quote or would cut off.

    Raises:
        DeclarationError: It has other characters, or too many.
    """
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
        raise DeclarationError(
            f"{what} cannot be named {name!r} in SQL.",
            fix=f"Use lower-case letters, digits and underscores, at most {_MAX_NAME} of them.",
        )


def snake_case(name: str) -> str:
    """The name of a class in snake case: `RoomKey` becomes `room_key`."""
    spaced = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", spaced).lower()


@dataclass(frozen=True, slots=True)
class Written:
    """Where a class is written: in which body of a module, and in which line of it."""

    body: ref[CodeType]
    place: str


def written_at(cls: type) -> Written | None:
    """Where a class is written whose body has just run; None if it is not one of a module.

    Raises:
        DeclarationError: The module has a table of this name. A module that is loaded again has another body.
    """
    frame = sys._getframe()  # noqa: SLF001 - nothing else knows the line
    while frame.f_code.co_name != "<module>" or frame.f_globals.get("__name__") != cls.__module__:
        if frame.f_back is None:
            return None
        frame = frame.f_back
    written = Written(ref(frame.f_code), place(frame.f_code.co_filename, frame.f_lineno))
    known = getattr(frame.f_globals.get(cls.__name__), "__declared__", None)
    known = getattr(known, "written", None) if cls.__qualname__ == cls.__name__ else None
    if known is not None and known.body() is frame.f_code:
        raise DeclarationError(
            f"Two tables of {cls.__module__} are called {cls.__name__}: {known.place} and {written.place}.",
            fix="Rename one of them.",
        )
    return written
