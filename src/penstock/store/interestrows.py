"""Interests as rows: what both stores share in telling whether the triggers of one are as they were made."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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


def check_columns(interest: Interest, columns: Collection[str]) -> None:
    """Raise `DeclarationError` for columns that a table has not."""
    missing = [column for column in interest.columns if column not in columns]
    if missing:
        raise DeclarationError(
            f"Interest {interest.name}: table {interest.table} has no column {', '.join(missing)}.",
            fix=f"Its columns are {', '.join(columns)}.",
        )
