"""Wall clocks: which instants a clock of a time zone shows, over all changes of the clock.

Owns zones, and the way from what a clock on the wall shows to instants in UTC. Leaves what is matched on it to
`crons/expression`.
"""

from __future__ import annotations

import difflib
import zoneinfo
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

from penstock.errors import DeclarationError, ValueInvalid

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)  # no clock was ever set by more, and none twice within one


@lru_cache
def zone(name: str) -> tzinfo:
    """The time zone of an IANA name.

    Raises:
        DeclarationError: There is no such zone.
    """
    if name == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:  # what a missing file, a bad name, a folder's name gives
        near = difflib.get_close_matches(name, sorted(zoneinfo.available_timezones()), n=1)
        meant = f"Did you mean {near[0]!r}?" if near else "Write the IANA name of a place, such as 'Europe/Prague'."
        raise DeclarationError(f"There is no time zone {name!r}.", fix=meant) from error


def check_zone(name: object) -> None:
    """Refuse what is no time zone's name.

    Raises:
        DeclarationError: It is no text, or there is no such zone.
    """
    if not isinstance(name, str):
        raise DeclarationError(f"A time zone is given by its name, not as {name!r}.", fix="Write 'Europe/Prague'.")
    zone(name)


def in_utc(moment: datetime) -> datetime:
    """The same instant in UTC.

    Raises:
        ValueInvalid: It has no time zone, so it is no instant.
    """
    if moment.tzinfo is None:
        raise ValueInvalid(f"{moment} has no time zone.", fix="Use datetime.now(UTC), or attach a tzinfo.")
    return moment.astimezone(UTC)


def shown(instant: datetime, place: tzinfo) -> datetime:
    """What a clock there shows at an instant; naive."""
    return instant.astimezone(place).replace(tzinfo=None)


def first_instant(wall: datetime, place: tzinfo) -> datetime:
    """The first instant at which a clock there shows a time, or jumps over it; in UTC."""
    instant = wall.replace(tzinfo=place, fold=0).astimezone(UTC)
    if shown(instant, place) == wall:
        return instant
    # In a gap, fold=1 gives an instant before the jump, and fold=0 one that is not before it (PEP 495).
    before = wall.replace(tzinfo=place, fold=1).astimezone(UTC)
    return change_within(before, instant, place) or instant


def change_within(start: datetime, end: datetime, place: tzinfo) -> datetime | None:
    """When a clock there is set between two instants at most a day apart: after the first, not after the second."""
    before = offset(start, place)
    if before == offset(end, place):
        return None
    while end - start > SECOND:
        middle = start + (end - start) // 2
        middle = max(middle.replace(microsecond=0), start + SECOND)
        if offset(middle, place) == before:
            start = middle
        else:
            end = middle
    return end


def offset(instant: datetime, place: tzinfo) -> timedelta:
    """By how much a clock there is ahead of UTC."""
    return instant.astimezone(place).utcoffset() or timedelta(0)
