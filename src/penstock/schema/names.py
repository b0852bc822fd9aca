"""Names of tables, fields and indexes: which of them SQL takes as they are, and what a class is called there."""

from __future__ import annotations

import re

from penstock.errors import DeclarationError

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
