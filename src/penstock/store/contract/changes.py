"""What verbs about the change feed, and about interests in it, take and give (`store.nouns`)."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from penstock.changes.change import CapturedChange
from penstock.changes.interest import Interest
from penstock.changes.position import NOTHING, Position
from penstock.store.contract.session import Statement

State = Literal["ok", "missing", "disabled", "altered", "gone"]


@dataclass(frozen=True, slots=True)
class InterestRow:
    """An interest as it is kept.

    Attributes:
        id: Its number, which its changes bear.
        state: ``ok``; ``missing``, if a trigger was dropped, or a partition came that has none; ``disabled``, if one
            was switched off; ``altered``, if one, or a column that it captures, is not as it was; ``gone``, if the
            table is. Declaring it again mends all but the last, unless it does not fit the table any more.
    """

    id: int
    interest: Interest
    state: State
    declared_at: datetime


@dataclass(frozen=True, slots=True)
class Source:
    """The statements that read the rows of an interest, spelled as its triggers spell them.

    Attributes:
        first: Rows in the order of the interest, with the parameter of how many: key, captured columns as they are,
            captured columns as they were, and the place in that order. If that is the order of keys, each place is the
            key, but for rows whose key is text that is no UTF-8: nobody can say it, so it tells no row.
        following: The same after a place: its first parameter, as it was given.
        among: Those of some keys: a JSON array of keys, of which each is spelled like that.
        keys: Those of some keys that belong to a row of the table.
        passed: Of rows as they were captured, a JSON array, those that are not behind a place: their numbers from 0.
    """

    first: Statement
    following: Statement
    among: Statement
    keys: Statement
    passed: Statement


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of changes for a reader.

    Attributes:
        changes: The changes, in commit order: none comes before one that its writer had seen.
        position: The position of the reader once it is done with them. Worth keeping without changes too.
        complete: Whether there was no more.
        before: The position before.
        rest: The number of changes, the first ones, that belong to a batch begun before.
        clock: A time of the database that covers all that the batch's snapshot shows, and never falls: a place in the
            write-ahead log, on SQLite the greatest number of a change. Commits with `synchronous_commit = off` are
            covered once they are durable. 0 if the batch is a piece of one begun before.
    """

    changes: builtins.list[CapturedChange]
    position: Position
    complete: bool
    before: Position
    rest: int = 0
    clock: int = 0

    def at(self, count: int) -> Position:
        """The position of the reader once it is done with this many of the changes."""
        if count == len(self.changes):
            return self.position
        if not count:
            return self.before
        while count and self.changes[count - 1].seq == self.changes[count].seq:  # of one write: handed over together
            count -= 1
        if not count:
            return self.before
        seq = self.changes[count - 1].seq
        high = max(self.before.high, seq)
        if self.position.seen == NOTHING and self.position.batch is None:  # as on SQLite, where numbers say it all
            return Position(high=high)
        if count <= self.rest:
            return Position(self.before.seen, self.before.batch, seq, high)
        snapshot = self.position.batch or self.position.seen
        return Position(self.before.batch or self.before.seen, snapshot, seq, high)


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """A reader of the feed.

    Attributes:
        lease: The lease under which it reads.
        moved_at: The time of its last move.
    """

    name: str
    position: Position
    lease: int | None
    registered_at: datetime
    moved_at: datetime


@dataclass(frozen=True, slots=True)
class Lag:
    """The backlog of a reader.

    Attributes:
        rows: The number of unread writes, as far as they were counted.
        oldest_at: The time of the oldest of these; None if there are none.
    """

    rows: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True)
class Dropped:
    """The dropped part of the feed.

    Attributes:
        origin: The server and database of the feed, and its last recovery from a crash. Elsewhere, or after another
            crash, positions without a reader are void: numbers of transactions that left nothing are given again.
        last: The greatest transaction of a dropped change; on SQLite the greatest number.
    """

    origin: str
    last: int

    def was_passed(self, position: Position) -> bool:
        """Whether a position is behind all dropped changes, so that none after it is missing."""
        seen = position.seen
        if seen == NOTHING:
            return position.high >= self.last
        return self.last < seen.end and all(xid > self.last for xid in seen.open)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The result of one step of making room in the feed.

    Attributes:
        emptied: The number of emptied slots; on SQLite the number of deleted changes.
        kept: The number of slots that could not be emptied, as a reader has not passed them, or somebody holds them.
        moved: Whether changes are written to another slot from now on.
    """

    emptied: int = 0
    kept: int = 0
    moved: bool = False
