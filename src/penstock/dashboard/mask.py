"""Hides secrets in arguments, results and rows: by the names under which they stand, and by their types."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from typing import Any

from pydantic_core import from_json

from penstock.functions.function import AnyFunction
from penstock.schema.encoder import MASKED
from penstock.schema.table import Table, definition_of

_OWNERS = (
    "access|account|admin|api|app|atm|auth|bank|bot|cart?d|client|consumer|credit|customer|database|db|debit|deploy|device|door|"
    "email|encryption|ftp|gateway|hmac|jwt|ldap|license|login|mail|master|my|mysql|new|oauth|old|pg|phone|postgres|private|proxy|"
    "redis|root|security|secret|server|service|session|sftp|shared|signing|sim|smtp|sql|ssh|sudo|unlock|user|web|webhook|wifi"
)
_SECRET = re.compile(
    r"passw(?:or)?d(?!less)|passwort|pass_?(?:phrase|code)|pwd|credential(?!ed|ing|is)|cookie(?!_?(?:banner|consent|cutter|policy))"
    r"|(?<!be)token(?!i[sz]|_?bucket)|secret(?!ar|es?(?:_|$)|ed|i[ov]|ly|or)"
    r"|(?:access|api|auth|encryption|hmac|license|master|private|secret|session|shared|signing|ssh)_?keys?(?!board|note|word)"
    rf"|(?<!s)pincode|(?<![a-z])(?:{_OWNERS})?(?:authorization|jwt|otp|pw|pins?(?:number|hash)?)(?![a-z])"
    rf"|(?<![a-z])(?:{_OWNERS})_?pass(?![a-z])"
)
# Of a name, what tells that the value is about a secret, or that it counts what a model reads and writes.
_INNOCENT = re.compile(
    r"(?:has|is|needs|requires|must)_.*|.*(?:_at|_?(?:counts?|expires|expiry|expiration|kind|length|limit|ttl|type))"
    r"|(?:(?:cached|completion|input|max|min|num|output|prompt|reasoning|total)_?)+tokens|tokens_?(?:left|total|usage|used)"
)
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def mask(value: Any, names: Collection[str] = ()) -> Any:
    """A value without the values of names that have a word such as `password` or `token`.

    Text that is JSON, such as the row in the arguments of a task's job, is searched like any other value.

    Args:
        value: A value as JSON has it.
        names: More names, in lower case.
    """
    if isinstance(value, str):
        return _mask_text(value, names)
    if isinstance(value, dict):
        return {
            name: MASKED if is_secret(str(name), names) and inner is not None else mask(inner, names)
            for name, inner in value.items()
        }
    return [mask(one, names) for one in value] if isinstance(value, list | tuple) else value


def _mask_text(text: str, names: Collection[str]) -> str:
    if text[:1] in {"{", "["}:
        with suppress(ValueError):
            found = from_json(text)
            shown = mask(found, names)
            return text if shown == found else json.dumps(shown, ensure_ascii=False, default=str)
    return text


def is_secret(name: str, names: Collection[str]) -> bool:
    """Whether a name is one of a secret, however its words are joined."""
    words = "_".join(_PART.findall(name)).lower()
    return name.lower() in names or (_SECRET.search(words) is not None and _INNOCENT.fullmatch(words) is None)


def secrets_of(function: AnyFunction) -> frozenset[str]:
    """The names, in lower case, under which the arguments and the result of a function hold secrets of pydantic's."""
    return frozenset(name.lower() for name in function.signature.secrets)


@lru_cache(maxsize=4096)
def secrets_in(table: type[Table]) -> frozenset[str]:
    """The secret names in the rows of a table."""
    return frozenset(name.lower() for column in definition_of(table).columns for name in column.secrets)
