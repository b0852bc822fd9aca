"""How what is declared by a handler is called: by its name, or without the module that this begins with.

Owns which one a name means. Leaves to the callers what they say if it is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def called(known: Iterable[T], name: object, name_of: Callable[[T], str]) -> T | None:
    """The one that has a name, or else the only one that has it after its module; None if there is none."""
    if not isinstance(name, str):
        return None
    names = {name_of(one): one for one in known}
    if name in names:
        return names[name]
    found = [one for whole, one in names.items() if whole.endswith(f":{name}")]
    return found[0] if len(found) == 1 else None
