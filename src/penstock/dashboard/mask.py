"""Hides secrets in arguments, results and rows: by the names under which they stand, and by their types."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import Any

from pydantic_core import from_json

from penstock.functions.function import AnyFunction
from penstock.schema.encoder import MASKED
from penstock.schema.table import Table, definition_of

_WORDS = {"apikey", "authorization", "cookie", "credential", "passphrase", "passwd", "password", "pin", "pwd", "secret"}
_WORDS |= {"token"}
_OF_KEYS = {"access", "api", "auth", "encryption", "license", "private", "secret", "signing"}  # other keys name things
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def masked(value: Any, names: Collection[str] = ()) -> Any:
    """A value without the values of names that have a word such as `password` or `token`.

    Text that is JSON, such as the row in the arguments of a task's job, is searched like any other value.

    Args:
        value: A value as JSON has it.
        names: More names, in lower case.
    """
    if isinstance(value, str):
        return _masked_text(value, names)
    if isinstance(value, dict):
        return {
            name: MASKED if is_secret(str(name), names) and inner is not None else masked(inner, names)
            for name, inner in value.items()
        }
    return [masked(one, names) for one in value] if isinstance(value, list | tuple) else value


def _masked_text(text: str, names: Collection[str]) -> str:
    if text[:1] in {"{", "["}:
        with suppress(ValueError):
            found = from_json(text)
            shown = masked(found, names)
            return text if shown == found else json.dumps(shown, ensure_ascii=False, default=str)
    return text


def is_secret(name: str, names: Collection[str]) -> bool:
    """Whether a name is one of a secret."""
    words = [word.lower() for word in _PART.findall(name)]
    singular = [word.removesuffix("s") for word in words]
    keys = any(before in _OF_KEYS and word == "key" for before, word in pairwise(singular))
    return name.lower() in names or keys or not _WORDS.isdisjoint((*words, *singular))


def secrets_of(function: AnyFunction) -> frozenset[str]:
    """The names, in lower case, under which the arguments and the result of a function hold secrets of pydantic's."""
    return frozenset(name.lower() for name in function.signature.secrets)


@lru_cache(maxsize=4096)
def secrets_in(table: type[Table]) -> frozenset[str]:
    """The same for the rows of a table."""
    return frozenset(name.lower() for column in definition_of(table).columns for name in column.secrets)
