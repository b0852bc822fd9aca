"""Interests as rows: what both stores share in telling whether the triggers of one are as they were made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from penstock.changes.interest import Interest
from penstock.errors import DeclarationError
from penstock.store.contract.changes import State

Interests = Mapping[int, Interest]  # by number


@dataclass(frozen=True, slots=True)
class Known:
    """An interest, and what is there of it.

    Attributes:
        capture: The number of the triggers that capture it; None if none do.
        installed: How these and the table were when they were made; None if they were not.
        found: What is there of its table; None if there is no such table.
        together: All interests that these triggers capture, by number.
    """

    id: int
    interest: Interest
    declared_at: datetime
    capture: int | None
    installed: Mapping[str, Any] | None
    found: Mapping[str, Any] | None
    together: dict[int, Interest] = field(default_factory=dict)


def known_by(known: Iterable[Known]) -> dict[Identity, Known]:
    """Interests by what tells them apart, each with those that share its triggers."""
    shared: dict[int | None, dict[int, Interest]] = {}
    found = [replace(one, together=shared.setdefault(one.capture, {})) for one in known]
    for one in found:
        one.together[one.id] = one.interest
    return {identity_of(one.interest): one for one in found}


class Capture(NamedTuple):
    """The interests that are to share triggers.

    Attributes:
        number: The number of the triggers.
        members: The interests.
        lost: Those that were captured before, and may have missed something.
    """

    number: int
    members: dict[int, Interest]
    lost: list[int]


def captures(
    known: Mapping[Identity, Known],
    state: Callable[[Known], State],
    asked: Known | None,
    dropped: Sequence[Known] = (),
    *,
    missed: bool = False,
) -> list[Capture]:
    """Which triggers are to be made anew where an interest is declared, or others are dropped.

    An interest that does not fit its table any more does not keep others from being captured: it is left out.
    """
    own = None if asked is None else _number(asked, known)
    apart = {one.id for one in (*dropped, asked) if one is not None}
    found = []
    for number in sorted(number for number in {*(one.capture for one in dropped), own} if number is not None):
        members = [one for one in known.values() if one.capture == number and one.id not in apart and _fits(one)]
        members += [asked] if asked is not None and number == own else []
        lost = [one.id for one in members if (missed and one is asked) or (one.installed and state(one) != "ok")]
        found.append(Capture(number, {one.id: one.interest for one in sorted(members, key=lambda one: one.id)}, lost))
    return found


def columns_read(one: Known, seen: Mapping[str, Any]) -> dict[str, str | None]:
    """The columns that an interest's triggers read, or that bear a name which is part of its SQL, with their types."""
    said = " ".join((one.interest.matches or "", *(one.interest.watches or ())))
    named = [column for column in (one.installed or seen)["columns"] if column in said]
    return {column: seen["columns"].get(column) for column in (*one.interest.columns, *named)}


def _fits(one: Known) -> bool:
    """Whether an interest can be captured as it was."""
    if one.installed is None or one.found is None:
        return False
    return columns_read(one, one.installed) == columns_read(one, one.found)


def _number(asked: Known, known: Mapping[Identity, Known]) -> int:
    """The number of the triggers for an interest: those of others in the same table that tell rows apart as it does."""
    same = asked.interest.table, [*asked.interest.key]
    shared = [one.capture for one in known.values() if (one.interest.table, [*one.interest.key]) == same]
    return next((number for number in shared if number is not None), asked.id)


Form = tuple[tuple[str, ...], tuple[str, ...]]  # columns that are captured before and after


def forms_of(interests: Interests) -> list[Form]:
    """Which columns are captured for some interests, each choice once."""
    return list(dict.fromkeys(map(form_of, interests.values())))


def form_of(interest: Interest) -> Form:
    """Which columns are captured for an interest."""
    return tuple(interest.before), tuple(interest.after)


def known_state(installed: Mapping[str, Any], now: Mapping[str, Any]) -> State:
    """Whether triggers, and what they read, are as they were made."""
    if not {*installed["triggers"]} <= {*now["triggers"]}:
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
