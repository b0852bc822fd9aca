"""Interests as rows, with their tables as the catalog shows them: pure rules that both stores share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from penstock.changes.interest import ROW, Interest
from penstock.dataclass import dataclass
from penstock.errors import DeclarationError

State = Literal["ok", "held", "missing", "disabled", "altered", "gone"]  # see `InterestRow`
Interests = Mapping[int, Interest]  # by number
Identity = tuple[str, str]  # name and digest
IN_ORDER: Collection[State] = ("ok", "held")  # nothing is missed, and nobody needs to repair them
_NAMED = re.compile(re.escape(ROW) + r'\.(?:"((?:[^"]|"")+)"|(\w+))')  # a column in the SQL of an interest
_Shared = tuple[str, tuple[str, ...], str]  # table, key, and the digest of an interest on demand


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTrigger:
    """A trigger of a capture."""

    name: str
    table: str = ""  # as SQL: that of the interest or a partition; on SQLite only if it is on another one by now
    enabled: str = ""  # the sessions for which it fires, as the catalog says it
    here: bool | None = None  # PostgreSQL only: whether it is on the interest's table itself


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    """An interest's table with the triggers of its capture, as the catalog shows it."""

    kind: str  # as the catalog calls it
    columns: Mapping[str, str]  # their SQL types
    triggers: Sequence[FoundTrigger] = ()
    text: str = ""  # SQLite only: the statement that made the table
    held: bool = False  # whether triggers stand in that name no column: see `Interests.hold`
    alone: bool = False  # SQLite only: whether it was held in a transaction of its own, so that others may write it
    # PostgreSQL only: see the view `interest_found`.
    each: str = ""
    plain: bool = True
    ordered: bool = True
    heirs: bool = False
    partitions: Sequence[str] = ()
    bodies: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    @lru_cache(256)  # all of them are read several times when a program starts
    def parse(cls, text: str) -> FoundTable:
        """A table from the JSON of its store's query, in which NULL stands for nothing of a kind."""
        given = _fields_of(cls, json.loads(text))
        triggers = [FoundTrigger(**_fields_of(FoundTrigger, one)) for one in given.get("triggers", ())]
        return cls(**given | {"triggers": triggers})

    @property
    def trigger_names(self) -> set[tuple[str, str]]:
        """Table and name of each trigger. The session's search path decides how SQL names the table itself."""
        return {("" if one.here else one.table, one.name) for one in self.triggers}


@dataclass(frozen=True, slots=True)
class StoredInterest:
    """An interest with its number, its triggers and its table."""

    id: int
    interest: Interest
    declared_at: datetime
    capture: int | None  # the number of its triggers, if it has any
    installed: FoundTable | None  # the table when its triggers were made, if they were
    found: FoundTable | None  # the table now, if there is one
    together: dict[int, Interest] = field(default_factory=dict)  # all interests that share its triggers


def _fields_of(cls: type[FoundTable | FoundTrigger], given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a class that are given. Another release may have written others."""
    return {one.name: given[one.name] for one in fields(cls) if given.get(one.name) is not None}


Stored = Mapping[Identity, StoredInterest]


def by_identity(interests: Iterable[StoredInterest]) -> dict[Identity, StoredInterest]:
    """Interests by name and digest, each with the ones that share its triggers."""
    shared: dict[int | None, dict[int, Interest]] = {}
    all_ = [replace(one, together=shared.setdefault(one.capture, {})) for one in interests]
    for one in all_:
        one.together[one.id] = one.interest
    return {identity_of(one.interest): one for one in all_}


def identity_of(interest: Interest) -> Identity:
    """The name and the digest of an interest."""
    return interest.name, interest.digest


def by_capture(interests: Iterable[Interest]) -> list[list[Interest]]:
    """Interests in groups that share triggers: those in one table that tell its rows apart by one key."""
    groups: dict[_Shared, list[Interest]] = {}
    for one in interests:
        groups.setdefault(_group(one), []).append(one)
    return list(groups.values())


def _group(interest: Interest) -> _Shared:
    """The common values of interests that share triggers. One on demand has its own: others cost what they did."""
    return interest.table, tuple(interest.key), interest.digest if interest.on_demand else ""


class Capture(NamedTuple):
    """Triggers that are to be made again, by number."""

    number: int
    members: dict[int, Interest]  # the interests that share them
    asked: Sequence[StoredInterest]  # those of them that were not captured, or not in order
    found: FoundTable | None  # their table
    lost: list[int]  # interests that were captured before and may have missed something


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Interests to capture, which share triggers, and interests to drop, or to keep without triggers."""

    stored: Stored
    asked: Sequence[StoredInterest] = ()
    dropped: Sequence[StoredInterest] = ()
    missed: Collection[Identity] = ()  # interests that should have been captured before
    misfits: Sequence[StoredInterest] = ()

    def captures(self, state: Callable[[StoredInterest], State]) -> Iterator[Capture]:
        """The triggers to be made again, given whether the changes of an interest are captured.

        An interest that does not fit its table any more is left out, so that it keeps no other from being captured.
        """
        own = _number(self.asked, self.stored) if self.asked else None
        left = (*self.dropped, *self.misfits)
        apart = {one.id for one in (*left, *self.asked)}
        for number in sorted(one for one in {own, *(each.capture for each in left)} if one is not None):
            sharing = [one for one in self.stored.values() if one.capture == number and one.id not in apart]
            asked = self.asked if number == own else ()
            members = sorted([*filter(_fits, sharing), *asked], key=lambda one: one.id)
            missed = [one.id for one in asked if identity_of(one.interest) in self.missed]
            lost = [one.id for one in members if one.id in missed or (one.installed and state(one) not in IN_ORDER)]
            found = next((one.found for one in (*asked, *members) if one.found), None)
            yield Capture(number, {one.id: one.interest for one in members}, asked, found, lost)


def _number(asked: Sequence[StoredInterest], stored: Stored) -> int:
    """The number of the triggers that some interests share: that of others in the same rows, or one of their own."""
    group = _group(asked[0].interest)
    numbers = (one.capture for one in stored.values() if one.capture is not None and _group(one.interest) == group)
    return next(numbers, asked[0].id)


def _fits(one: StoredInterest) -> bool:
    """Whether an interest can be captured as it was."""
    if one.installed is None or one.found is None:
        return False
    return columns_read(one, one.installed) == columns_read(one, one.found)


def has_other_rows(one: StoredInterest) -> bool:
    """Whether another table has taken the name of a held one, or partitions have come or gone.

    SQLite's tools rewrite a table to change it: that drops its triggers, and leaves none elsewhere.
    """
    if one.installed is None or one.found is None:
        return False
    then, now = one.installed, one.found
    is_copied = bool(now.text) and not now.triggers and not then.alone
    return now.partitions != then.partitions or (now.trigger_names != then.trigger_names and not is_copied)


def columns_read(one: StoredInterest, table: FoundTable) -> dict[str, str | None]:
    """The columns that an interest's triggers read, with their types."""
    sql = " ".join((one.interest.matches or "", *(one.interest.watches or ())))
    named = [quoted.replace('""', '"') or bare for quoted, bare in _NAMED.findall(sql)]
    return {column: table.columns.get(column) for column in (*one.interest.columns, *named)}


def capture_state(one: StoredInterest | None, read: Callable[[StoredInterest, FoundTable], Any]) -> State:
    """Whether an interest has its triggers, and these read the same as when they were made (`read`)."""
    if one is not None and one.found is None:
        return "gone"
    if one is None or one.found is None or one.installed is None or one.capture is None:
        return "missing"
    if one.installed.held:
        return "held"
    then, now = one.installed.trigger_names, one.found.trigger_names
    if not then <= now:
        return "missing"
    return "ok" if then == now and read(one, one.installed) == read(one, one.found) else "altered"


def namesakes(interest: Interest, stored: Stored) -> list[StoredInterest]:
    """The other interests of the same name."""
    return [one for (name, digest), one in stored.items() if name == interest.name and digest != interest.digest]


def orphans(interests: Sequence[Interest], numbers: Sequence[int], stored: Stored) -> frozenset[int]:
    """The numbers of interests that do not have them any more."""
    found = {number: stored.get(identity_of(one)) for one, number in zip(interests, numbers, strict=True)}
    return frozenset(number for number, one in found.items() if one is None or one.id != number)


def check_table(one: StoredInterest, refused: Mapping[str, str]) -> FoundTable:
    """The table of an interest; `DeclarationError` if it lacks a column, or is of a kind that is refused."""
    interest, table = one.interest, one.found
    if table is None:
        raise DeclarationError(f"Interest {interest.name}: there is no table {interest.table}.")
    if table.kind in refused:
        raise DeclarationError(
            f"Interest {interest.name}: {interest.table} is {refused[table.kind]}, whose changes cannot be captured.",
            fix="Name the tables it is made of.",
        )
    missing = [column for column in interest.columns if column not in table.columns]
    if missing:
        raise DeclarationError(
            f"Interest {interest.name}: table {interest.table} has no column {', '.join(missing)}.",
            fix=f"Its columns are {', '.join(table.columns)}.",
        )
    return table
