"""What verbs about the change feed, and about interests in it, take and give (`store.nouns`)."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from penstock.changes.change import CapturedChange
from penstock.changes.interest import Interest
from penstock.changes.position import NOTHING, Position
from penstock.store.contract.session import Statement

State = Literal["ok", "held", "missing", "disabled", "altered", "gone"]


@dataclass(frozen=True, slots=True)
class InterestRow:
    """An interest as it is kept."""

    id: int  # its number, which its changes bear
    interest: Interest
    # ``ok``; ``held``, while each write of the table tells ``lost``; ``missing``, if a trigger was dropped, or a
    # partition came that has none; ``disabled``, if one was switched off; ``altered``, if one, or a column that it
    # captures, is not as it was; ``gone``, if the table is. Declaring it again mends all but ``held`` and the last,
    # unless it does not fit the table any more
    state: State
    declared_at: datetime


@dataclass(frozen=True, slots=True)
class Source:
    """The statements that read the rows of an interest, spelled as its triggers spell them."""

    # rows in the order of the interest, with the parameter of how many: key, captured columns as they are, captured
    # columns as they were, and the place in that order. If that is the order of keys, each place is the key, but for
    # rows whose key is text that is no UTF-8: nobody can say it, so it tells no row
    first: Statement
    following: Statement  # the same after a place: its first parameter, as it was given
    among: Statement  # those of some keys: a JSON array of keys, of which each is spelled like that
    keys: Statement  # those of some keys that belong to a row of the table
    # of rows as they were captured, a JSON array, those that are not behind a place: their numbers from 0
    passed: Statement


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of changes for a reader."""

    # the changes, in commit order: none comes before one that its writer had seen
    changes: builtins.list[CapturedChange]
    position: Position  # the position of the reader once it is done with them. Worth keeping without changes too
    complete: bool  # whether there was no more
    before: Position  # the position before
    rest: int = 0  # the number of changes, the first ones, that belong to a batch begun before
    # a time of the database that covers all that the batch's snapshot shows, and never falls: a place in the
    # write-ahead log, on SQLite the greatest number of a change. Commits with `synchronous_commit = off` are covered
    # once they are durable. 0 if the batch is a piece of one begun before
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
            return replace(self.before, last=seq, high=high)
        snapshot = self.position.batch or self.position.seen
        return Position(self.before.batch or self.before.seen, snapshot, seq, high, self.position.server)


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """A reader of the feed."""

    name: str
    position: Position
    lease: int | None  # the lease under which it reads
    registered_at: datetime
    moved_at: datetime  # the time of its last move


@dataclass(frozen=True, slots=True)
class Lag:
    """The backlog of a reader."""

    rows: int  # the number of unread writes, as far as they were counted
    oldest_at: datetime | None  # the time of the oldest of these; None if there are none


@dataclass(frozen=True, slots=True)
class Dropped:
    """The dropped part of the feed."""

    # the server and database of the feed, and its last recovery from a crash. Elsewhere, or after another crash,
    # positions without a reader are void: numbers of transactions that left nothing are given again
    origin: str
    last: int  # the greatest transaction of a dropped change; on SQLite the greatest number

    def was_passed(self, position: Position) -> bool:
        """Whether a position is behind all dropped changes, so that none after it is missing."""
        seen = position.seen
        if seen == NOTHING:
            return position.high >= self.last
        return self.last < seen.end and all(xid > self.last for xid in seen.open)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The result of one step of making room in the feed."""

    emptied: int = 0  # the number of emptied slots; on SQLite the number of deleted changes
    # the number of slots that could not be emptied, as a reader has not passed them, or somebody holds them
    kept: int = 0
    moved: bool = False  # whether changes are written to another slot from now on
