"""Interests as rows: what both stores share in telling whether the triggers of one are as they were made."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.changes.interest import Interest
from penstock.errors import DeclarationError
from penstock.store.changes import State


@dataclass(frozen=True, slots=True)
class Known:
    """An interest, and what is there of it.

    Attributes:
        installed: How its triggers were when they were made; None if they were not.
        found: What is there of its table; None if there is no such table.
    """

    id: int
    interest: Interest
    declared_at: datetime
    installed: Mapping[str, Any] | None
    found: Mapping[str, Any] | None


def known_state(installed: Mapping[str, Any], now: Mapping[str, Any]) -> State:
    """Whether triggers, and what they read, are as they were made."""
    if not installed["triggers"].keys() <= now["triggers"].keys():
        return "missing"
    return "ok" if installed == now else "altered"


Identity = tuple[str, str]  # name and digest


def identity_of(interest: Interest) -> Identity:
    """What tells an interest from all others."""
    return interest.name, interest.digest


def others(interest: Interest, known: Mapping[Identity, Known]) -> list[Known]:
    """All of an interest's name but itself."""
    return [one for (name, digest), one in known.items() if name == interest.name and digest != interest.digest]


def gone(interests: Sequence[Interest], numbers: Sequence[int], known: Mapping[Identity, Known]) -> frozenset[int]:
    """Of the numbers of interests those that are gone."""
    found = {number: known.get(identity_of(one)) for one, number in zip(interests, numbers, strict=True)}
    return frozenset(number for number, one in found.items() if one is None or one.id != number)


def check_columns(interest: Interest, columns: Collection[str]) -> None:
    """Raise `DeclarationError` for columns that a table has not."""
    missing = [column for column in interest.columns if column not in columns]
    if missing:
        raise DeclarationError(
            f"Interest {interest.name}: table {interest.table} has no column {', '.join(missing)}.",
            fix=f"Its columns are {', '.join(columns)}.",
        )
