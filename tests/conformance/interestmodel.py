"""A model of what an interest is told of rows that are written one by one, for `interests`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.changes.interest import Interest

Row = tuple[int | None, int | None]


class Model:
    """What an interest should be told of rows that hold two values."""

    def __init__(
        self,
        interest: Interest,
        about: Callable[[Row], Any] = lambda _: True,
        watched: Callable[[Row], Any] = lambda row: row,
    ) -> None:
        self.interest = interest
        self._about = about
        self._watched = watched
        self.told: list[tuple[str, int]] = []

    def follow(self, before: Mapping[int, Row], rows: Mapping[int, Row]) -> None:
        """A statement has changed one row, or its key."""
        for key in sorted(before.keys() - rows.keys()):
            self._tell("delete", key, self._about(before[key]))
        for key in rows.keys() & before.keys():
            was, is_now = self._about(before[key]), self._about(rows[key])
            self._tell("enter", key, is_now and not was)
            self._tell("leave", key, was and not is_now)
            differs = self._watched(before[key]) != self._watched(rows[key])
            self._tell("change", key, was and is_now and differs)
        for key in rows.keys() - before.keys():
            self._tell("enter", key, self._about(rows[key]))

    def _tell(self, kind: str, key: int, condition: Any) -> None:
        if condition and self.interest.wants(kind):
            self.told.append((kind, key))


def write_one(chance: Any, rows: dict[int, Row]) -> str:
    """A statement that changes one row at most, and what comes of it."""
    key, other = chance.randrange(6), chance.randrange(6)
    row = (chance.choice([None, 1, 2, 3]), chance.choice([None, 1, 2, 3]))
    b, c = ("null" if value is None else str(value) for value in row)
    if key not in rows:
        rows[key] = row
        return f"insert into thing values ({key}, {b}, {c})"
    match chance.randrange(5):
        case 0:
            del rows[key]
            return f"delete from thing where a = {key}"
        case 1 if other not in rows:
            del rows[key]
            rows[other] = row
            return f"update thing set a = {other}, b = {b}, c = {c} where a = {key}"
        case 2:
            rows[key] = row
            return f"insert into thing values ({key}, 0, 0) on conflict (a) do update set b = {b}, c = {c}"
        case _:
            rows[key] = row
            return f"update thing set b = {b}, c = {c} where a = {key}"
