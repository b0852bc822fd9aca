"""The promises of a store about the change feed; a part of `store.contract`, in a file of its own for its length."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Protocol

from penstock.changes.change import CapturedChange
from penstock.changes.interest import Interest
from penstock.changes.position import NOTHING, Position
from penstock.store.contract.session import OpenTransaction, Session, Statement
from penstock.store.sql.conditions import ConditionSql

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


class Interests(Protocol):
    """Interests at rest, and the triggers that capture their changes."""

    async def add(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        """Give interests their numbers, without capturing anything yet; those that are known keep theirs."""

    async def check(self, interests: Sequence[Interest], now: datetime) -> None:
        """Raise the errors of `declare`, without changing anything; interests in order take no lock.

        Where others hold locks on a table, it is not tried out what its database says to the SQL.

        Raises:
            DeclarationError: See `declare`.
        """

    async def declare(self, interests: Sequence[Interest], now: datetime) -> builtins.list[int]:
        """Have changes captured from now on, and mend broken triggers; the numbers of the interests, in their order.

        Those that are declared and in order are left alone, and no lock is taken for them. One that was captured before
        and was not in order is told of as ``lost``, in the transaction that makes its triggers anew; so is one that a
        task is declared with already, as it should have been captured.

        Raises:
            DeclarationError: There is no such table, it is a view or the like, or the database refuses the SQL.
            DatabaseBusy: Others hold locks on the table for too long.
        """

    async def replace(self, interests: Sequence[Interest], numbers: Sequence[int], now: datetime) -> frozenset[int]:
        """Have changes captured under the numbers that `add` gave, and for no others of the same names any more.

        One transaction ends the one and begins the other. Those that are in order and alone take no lock.

        Returns:
            The numbers that are gone, as somebody else has replaced them meanwhile: nothing was done about these.

        Raises:
            DeclarationError: See `declare`.
            DatabaseBusy: Others hold locks on the table for too long.
        """

    async def keep_declared(self, interests: Sequence[Interest], now: datetime) -> None:
        """Capture for tasks exactly the interests they are declared with now.

        If that is one of these interests, it takes the place of all others of its name, in one transaction, and is
        told of as ``lost`` if somebody has dropped it meanwhile. If it is not, as another release has declared the task
        since, the one that was given is dropped.

        Raises:
            DeclarationError: See `declare`.
            DatabaseBusy: Others hold locks on the table for too long.
        """

    async def mend(self, id_: int) -> bool:
        """Make the triggers of an interest anew, waiting for nobody; False if it is in order, or not there any more.

        Raises:
            DeclarationError: It does not fit the table any more.
            DatabaseBusy: Others hold locks on the table.
        """

    async def drop(self, ids: Sequence[int], *, unused: bool = False) -> None:
        """Stop capturing them. Captured changes stay until their readers have passed them.

        Args:
            ids: Their numbers.
            unused: Whether only those of them are dropped which were added, and never captured.
        """

    async def list(self) -> builtins.list[InterestRow]:
        """All interests by number, and whether each still captures."""

    async def each_of(self, tables: Sequence[str], session: OpenTransaction | None = None) -> frozenset[str]:
        """Those of some tables of which each change counts, as a transaction sees it.

        Tables are compared, and not names: an interest may spell its table otherwise.
        """

    async def source(self, number: int, only: ConditionSql | None = None) -> Source | None:
        """The statements that read the rows of an interest; None if there is no such interest, or no such table.

        Args:
            number: Its number.
            only: A part of its rows, with the columns to read as they were. These rows are kept from being changed
                until the transaction ends in which they are read.
        """


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of changes for a reader.

    Attributes:
        changes: The changes, in commit order: none comes before one that its writer had seen.
        position: The position of the reader once it is done with them. Worth keeping without changes too.
        complete: Whether there was no more.
        before: The position before.
        rest: The number of changes, the first ones, that belong to a batch begun before.
    """

    changes: builtins.list[CapturedChange]
    position: Position
    complete: bool
    before: Position
    rest: int = 0

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


class Readers(Protocol):
    """The readers of the change feed."""

    async def register(self, name: str, now: datetime, at: Position | None = None) -> bool:
        """Add a reader at a position, or where the feed ends now; False if there is one of this name."""

    async def place(self, name: str, now: datetime, at: Position | None = None) -> bool:
        """Move a reader to a position, and take it from its process; False if there is none."""

    async def take(self, name: str, lease: int) -> Position | None:
        """Read under a lease from now on; the reader's position, or None if another lease has it that is not gone.

        If the database was restored elsewhere, all readers are first made to fit it.
        """

    async def leave(self, name: str, lease: int) -> None:
        """Read no more under a lease: the next one to take the reader knows that this one has not died."""

    async def move(
        self, session: Session, name: str, lease: int, before: Position, after: Position, now: datetime
    ) -> bool:
        """Advance a reader by compare-and-set, in the transaction that applies a batch; False if it was lost.

        It is lost if another lease has taken it, or it has moved. After False the caller rolls the transaction back.
        """

    async def readers(self) -> list[ReaderRow]:
        """All readers by name."""

    async def lag(self, position: Position, most: int, interests: Sequence[int] | None = None) -> Lag:
        """The backlog behind a position; no more than `most` writes are counted."""

    async def forget(self, name: str) -> bool:
        """Drop a reader, so that no changes are kept for it; False if there is none."""


class Feed(Protocol):
    """The change feed."""

    async def read(
        self,
        position: Position,
        limit: int,
        interests: Sequence[int] | None = None,
        session: OpenTransaction | None = None,
    ) -> Batch:
        """The changes after a position: of up to `limit` writes, of these interests or of all.

        All changes of one write come together.

        With a session, they are the changes that it sees. They fit the rows that it reads: none is missed or comes
        twice.

        Raises:
            Conflict: The position is of another server, from which the database was restored: take the reader again.
        """

    async def unread(self, session: OpenTransaction, position: Position, interest: int, limit: int) -> set[str] | None:
        """The keys of rows with changes after a position, as a session sees them; None if there are more than `limit`.

        Changes of whole tables have no keys, and count as more.

        Args:
            session: The session.
            position: The position.
            interest: The number of the interest.
            limit: The largest number of keys.
        """

    async def before(self, moment: datetime) -> Position:
        """A position before all kept changes that were written at a time or later."""

    async def rotate(self, now: datetime, limit: int) -> Rotation:
        """Make room: drop changes that all readers have passed, in one bounded step, and waiting for nobody.

        Changes younger than the longest `keep_for` of an outbox are kept.
        """

    async def size(self) -> int:
        """The size of the feed in bytes; on SQLite about."""

    async def oldest_transaction(self) -> timedelta | None:
        """The age of the oldest open transaction; None if it cannot be known."""


class Changes(Readers, Feed, Protocol):
    """The change feed: captured changes, and the position of each reader.

    Only triggers write there. A reader is held under a lease, as jobs are: a process that has lost it cannot move it.
    """
