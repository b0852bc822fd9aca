"""The promises of a store about outboxes; a part of `store.contract`, in a file of its own for its length."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, Protocol

from penstock.changes.change import CapturedChange
from penstock.changes.position import Position
from penstock.outbox.backfill import BEFORE_ALL
from penstock.outbox.trouble import Trouble
from penstock.store.contract.session import OpenTransaction, Session
from penstock.store.contract.tasks import Move

AsideState = Literal["waiting", "halted", "parked"]
Forgets = Literal["again", "pending", "all"]

Identity = tuple[int, str | None]  # of a message: its number; of an older row 0 and its key, as its number may change

KEPT = "kept"  # instead of a backfill: the one before


@dataclass(frozen=True, slots=True)
class OutboxPlan:
    """An outbox as a program declares it to the store.

    Attributes:
        name: Its name.
        function: The name of its handler.
        kind: The kind of that function.
        source: The table or the topic that it sends.
        spec: The other options, as JSON, to be shown.
        version: Of the declaration.
        keep_for: How long messages are kept at least.
    """

    name: str
    function: str
    kind: str
    source: str
    spec: str
    version: int
    keep_for: timedelta


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An outbox as it is kept.

    Attributes:
        id: Its number.
        plan: Its last declaration.
        interests: The numbers under which its messages are in the change feed, those of earlier declarations too.
        declared_at: When it was.
        epoch: The number of changes by others than the relay that reads it.
        ready: Whether its changes are captured.
        paused: Whether it is paused.
        backfill: The rest of the backfill, as `outbox.backfill` writes it; None if that is done.
        skips: The numbers of messages that are passed by.
        trouble: The trouble of the next message, if it has failed.
        delivered: The number of delivered messages.
        delivered_at: The time of the last delivery.
        rate: Deliveries per second, over about a minute until then.
        passed: Messages behind the one that is next which are done with already.
        fence: The fencing number of its reader, which rises with each lease that takes it; 0 if none ever has.
        meanings: The declarations under which changes were captured, by these numbers, as `outbox.criteria` writes
            them.
    """

    id: int
    plan: OutboxPlan
    interests: tuple[int, ...]
    declared_at: datetime
    epoch: int
    ready: bool
    paused: bool
    backfill: str | None
    skips: tuple[int, ...]
    trouble: Trouble | None
    delivered: int
    delivered_at: datetime | None
    rate: float = 0.0
    meanings: Mapping[int, str] = field(default_factory=dict)
    passed: frozenset[Identity] = frozenset()
    fence: int = 0


@dataclass(frozen=True, slots=True)
class AsideCount:
    """The number of messages of an outbox that are set aside in one state.

    Attributes:
        outbox: The number of the outbox.
        number: Their number, as far as they were counted.
        oldest_at: The time at which the first of them was written.
        used_up: The number of those whose attempts are used up.
    """

    outbox: int
    state: AsideState
    number: int
    oldest_at: datetime
    used_up: int


@dataclass(frozen=True, slots=True)
class Aside:
    """A message that is not next any more, and not delivered.

    Attributes:
        change: Its change.
        key: The key by which it is ordered.
        state: ``waiting`` for others to be delivered; ``halted``, as it has failed, and those of its key wait for it;
            ``parked``, as it has failed, and nobody waits for it.
        trouble: Its trouble, if it has failed.
        turned: Whether it was turned into an insert: its row was still to be handed over when it was changed, and of
            that change alone the feed tells.
    """

    change: CapturedChange
    key: str
    state: AsideState
    trouble: Trouble | None = None
    turned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a relay, written together, if the outbox and its reader are as the relay knows them.

    Attributes:
        outbox: The outbox as the relay knows it.
        move: The move of its reader; none if its ends are the same.
        backfill: The rest of the backfill then.
        trouble: The trouble of the next message then.
        delivered: The number of messages delivered since.
        put: Messages that are put aside; one that was put aside before is written anew.
        taken: The numbers of those that are aside no more.
        skipped: The numbers of messages that were passed by, as was asked for.
        passed: All messages behind the one that is next then which are done with.
    """

    outbox: OutboxRow
    move: Move
    backfill: str | None
    trouble: Trouble | None = None
    delivered: int = 0
    put: Sequence[Aside] = ()
    taken: Sequence[int] = ()
    skipped: Sequence[int] = ()
    passed: frozenset[Identity] = frozenset()


class OutboxDeclarations(Protocol):
    """Outboxes as programs declare them and send to them."""

    async def declare(self, plan: OutboxPlan, backfill: str | None, now: datetime) -> OutboxRow:
        """Make an outbox known: as it was before, or not ready if it is new. A lower version changes nothing."""

    async def capture(self, outbox: int, interests: Sequence[int], meaning: str | None = None) -> None:
        """Have its messages read under these numbers too, and judged by these criteria."""

    async def prepared(self, outbox: int) -> None:
        """Note that its changes are captured from now on."""

    async def halt(self, name: str, trouble: Trouble) -> bool:
        """Have an outbox wait for somebody to look after it; False if there is none."""

    async def topic(self, name: str) -> int:
        """The number of a topic, which is made known."""

    async def send(self, session: OpenTransaction, topic: str, payload: str, key: str | None) -> bool:
        """Send a message in a transaction; False if nobody has ever declared the topic."""

    async def resend(self, session: OpenTransaction, interest: int, rows: Sequence[tuple[str, str]]) -> None:
        """Append rows to the change feed as they are, each with its key, in a transaction that has locked them."""

    async def list(self) -> builtins.list[OutboxRow]:
        """All outboxes by name."""


class OutboxDelivery(Protocol):
    """Outboxes as the relay delivers them."""

    async def advance(self, step: Step, now: datetime, session: Session | None = None) -> bool:
        """Write a step, in a transaction; by default in one of its own.

        Returns:
            False if the reader was lost, or the outbox was changed by others. The caller then rolls back the
            transaction.
        """

    async def waiting(self, outbox: int, limit: int) -> builtins.list[Aside]:
        """Messages that wait, of keys of which none has failed, in their order."""

    async def failed(self, outbox: int, now: datetime, limit: int) -> builtins.list[Aside]:
        """Messages that keep those of their key waiting, and are to be tried again by now; the longest due first."""

    async def next_retry(self, outbox: int) -> datetime | None:
        """The time of the next of these retries."""

    async def kept_keys(self, outbox: int) -> set[str]:
        """The keys of messages that wait or have failed, without parked ones."""

    async def turned(self, outbox: int) -> set[int]:
        """The numbers of messages aside that were turned into inserts."""

    async def put_keys(
        self, session: OpenTransaction, outbox: int, keys: Sequence[str], kinds: Sequence[str]
    ) -> set[str]:
        """The keys among these for which a change of these kinds was set aside, as a session sees it."""

    async def aside(
        self, outbox: int, states: Sequence[AsideState], limit: int, after: int = BEFORE_ALL
    ) -> builtins.list[Aside]:
        """Messages that are put aside, in their order, after the one with a number."""


class OutboxAdmin(Protocol):
    """Outboxes as people look after them."""

    async def backlog(self, most: int) -> builtins.list[AsideCount]:
        """The set-aside messages of each outbox, by state; no more than `most` of each are counted."""

    async def pause(self, name: str, *, paused: bool) -> bool:
        """Send nothing of an outbox, or go on; False if there is none."""

    async def retry(self, name: str, now: datetime, seqs: Sequence[int] | None = None) -> int:
        """Retry failed messages now: the next one and those set aside, or some of these; their number."""

    async def skip(self, name: str, seq: int) -> bool:
        """Pass a message by that has failed; False if none of this number has."""

    async def hold(self, name: str, lease: int) -> bool:
        """Take an outbox from the relay that reads it, and keep it from all relays under a lease; False if none is."""

    async def place(
        self,
        name: str,
        at: Position | None,
        backfill: str | None,
        now: datetime,
        *,
        forgets: Forgets = "again",
        interests: Sequence[int] | None = None,
        session: Session | None = None,
    ) -> bool:
        """Go on from elsewhere; False if there is no such outbox.

        Args:
            name: The outbox.
            at: The position; None for the end of the feed.
            backfill: The new backfill; `KEPT` for the one before.
            now: The time.
            forgets: The set-aside messages to forget: those that are read ``"again"``, which those that
                were turned are not; with ``"pending"`` all but those parked; or ``"all"``.
            interests: The numbers under which it is known to be read; by default that does not matter.
            session: The transaction; by default one of its own.

        Raises:
            Conflict: It is read under other numbers by now.
            CursorInvalid: The feed has not come to this position yet: it is of another database.
        """

    async def forget(self, name: str) -> bool:
        """Drop an outbox, with its reader and its set-aside messages; False if there is none."""


class Outboxes(OutboxDeclarations, OutboxDelivery, OutboxAdmin, Protocol):
    """Outboxes at rest: their cursors, and their set-aside messages."""
