"""Words for filters that Python's own operators lack: `in_`, `is_none`, `known`, `length`, `matches`, `has`.

They are typed as if they were given a row's values, so that type checkers follow a filter; in a filter they are given
stand-ins. Each is a method of the stand-in too, for functions that are not type-checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, cast

from penstock.errors import UsageError
from penstock.reactive.standins import Operand

T = TypeVar("T")


def in_(value: T, options: Iterable[T]) -> bool:
    """In a filter: whether a field equals one of some values."""
    return cast("bool", _operand("in_", value).in_(options))


def is_none(value: object) -> bool:
    """In a filter: whether a field is None."""
    return cast("bool", _operand("is_none", value).is_none())


def known(value: T | None) -> T:
    """In a filter: a field that may be None, for type checkers one that is not. Comparisons with None are false."""
    return cast("T", _operand("known", value))


def length(value: str | bytes | Sequence[Any] | None) -> int:
    """In a filter: how many characters, bytes or elements a field has."""
    return cast("int", _operand("length", value).length())


def contains(value: str | None, text: str) -> bool:
    """In a filter: whether a field is a text that contains another one."""
    return cast("bool", _operand("contains", value).contains(text))


def matches(value: str | None, pattern: str) -> bool:
    """In a filter: whether a field is a text in which a pattern is found."""
    return cast("bool", _operand("matches", value).matches(pattern))


def has(value: Iterable[T] | None, element: T) -> bool:
    """In a filter: whether a field is a JSON array that has an element."""
    return cast("bool", _operand("has", value).has(element))


def _operand(word: str, value: object) -> Operand:
    if not isinstance(value, Operand):
        raise UsageError(
            f"{word}() takes a field of the row that a filter is called with, not {value!r}.",
            fix="Outside of filters, use Python's own operators.",
        )
    return value
