"""Hides secrets in arguments and results, by the names under which they stand."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

MASKED = "••••••"
_WORDS = {"apikey", "authorization", "cookie", "credential", "key", "passphrase", "passwd", "password", "pin", "pwd"}
_WORDS |= {"secret", "token"}
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def masked(value: Any, names: Collection[str] = ()) -> Any:
    """A value without the values of names that have a word such as `password` or `token`.

    Args:
        value: A value as JSON has it.
        names: More names, in lower case.
    """
    if isinstance(value, dict):
        return {
            name: MASKED if _is_secret(str(name), names) and inner is not None else masked(inner, names)
            for name, inner in value.items()
        }
    return [masked(one, names) for one in value] if isinstance(value, list | tuple) else value


def _is_secret(name: str, names: Collection[str]) -> bool:
    words = {word.lower() for word in _PART.findall(name)}
    return name.lower() in names or any(word in _WORDS or word.removesuffix("s") in _WORDS for word in words)
