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

KEPT = "kept"  # instead of what is left of older rows: what was left of them before


@dataclass(frozen=True, slots=True)
class OutboxPlan:
    """An outbox as a program declares it to the store.

    Attributes:
        name: Its name.
        function: The name of its handler.
        kind: What kind of function that is.
        source: The table or the topic that it sends.
        spec: What else was declared, as JSON, to be shown.
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
        plan: What was declared of it last.
        interests: The numbers under which its messages are in the change feed, those of earlier declarations too.
        declared_at: When it was.
        epoch: How often it was changed by others than the relay that reads it.
        ready: Whether its changes are captured.
        paused: Whether nothing of it is sent.
        backfill: What is left of the rows that are older, as `outbox.older` writes it; None if that is done.
        skips: The numbers of messages that are passed by.
        trouble: What is known of the next message, if it has failed.
        delivered: How many messages have been delivered.
        delivered_at: When the last one was.
        rate: How many a second were, over about a minute until then.
        passed: Messages behind the one that is next which are done with already.
        fence: The number of who reads it, which rises with each lease that takes its reader; 0 if none ever has.
        meanings: What was declared when changes were captured under some of these numbers, as `outbox.meaning` writes
            it.
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
    """How many messages of an outbox are put aside in one state.

    Attributes:
        outbox: The number of the outbox.
        number: How many, as far as they were counted.
        oldest_at: When the first of them was written.
        used_up: Of how many the attempts are used up.
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
        change: The change that it is.
        key: The key by which it is ordered.
        state: ``waiting`` for others to be delivered; ``halted``, as it has failed, and those of its key wait for it;
            ``parked``, as it has failed, and nobody waits for it.
        trouble: What is known of it, if it has failed.
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
    """One step of a relay: what is written together, if the outbox and its reader are as the relay knows them.

    Attributes:
        outbox: The outbox as the relay knows it.
        move: How its reader moves on; not at all if its ends are the same.
        backfill: What is left of older rows then.
        trouble: What is known of the message that is next then.
        delivered: How many messages more were delivered.
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
        """Have its messages read under these numbers too, and judged by this meaning."""

    async def prepared(self, outbox: int) -> None:
        """Its changes are captured from now on."""

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
        """Write what a step says, in a transaction; by default in one of its own.

        Returns:
            False if the reader was lost, or the outbox was changed by others. Whoever gets False undoes the
            transaction.
        """

    async def waiting(self, outbox: int, limit: int) -> builtins.list[Aside]:
        """Messages that wait, of keys of which none has failed, in their order."""

    async def failed(self, outbox: int, now: datetime, limit: int) -> builtins.list[Aside]:
        """Messages that keep those of their key waiting, and are to be tried again by now; the longest due first."""

    async def next_retry(self, outbox: int) -> datetime | None:
        """When the next of these is to be tried again."""

    async def kept_keys(self, outbox: int) -> set[str]:
        """The keys of which messages wait or have failed, those parked left out."""

    async def turned(self, outbox: int) -> set[int]:
        """The numbers of messages aside that were turned into inserts."""

    async def put_keys(
        self, session: OpenTransaction, outbox: int, keys: Sequence[str], kinds: Sequence[str]
    ) -> set[str]:
        """Of rows with these keys those of which a change of these kinds was put aside, as a session sees it."""

    async def aside(
        self, outbox: int, states: Sequence[AsideState], limit: int, after: int = BEFORE_ALL
    ) -> builtins.list[Aside]:
        """Messages that are put aside, in their order, after the one with a number."""


class OutboxAdmin(Protocol):
    """Outboxes as people look after them."""

    async def backlog(self, most: int) -> builtins.list[AsideCount]:
        """What is put aside of each outbox, by state; no more than `most` of each are counted."""

    async def pause(self, name: str, *, paused: bool) -> bool:
        """Send nothing of an outbox, or go on; False if there is none."""

    async def retry(self, name: str, now: datetime, seqs: Sequence[int] | None = None) -> int:
        """Have what has failed tried again now: the next message and those aside, or some of these; how many."""

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
            at: The position; None for where the feed ends.
            backfill: What is left of older rows; `KEPT` for what was left of them.
            now: The time.
            forgets: Which messages that are put aside are forgotten: those that are read ``"again"``, which those that
                were turned are not; with ``"pending"`` all but those parked; or ``"all"``.
            interests: The numbers under which it is known to be read; by default that does not matter.
            session: The transaction; by default one of its own.

        Raises:
            Conflict: It is read under other numbers by now.
            CursorInvalid: The feed has not come to this position yet: it is of another database.
        """

    async def forget(self, name: str) -> bool:
        """Drop an outbox, with its reader and what is put aside; False if there is none."""


class Outboxes(OutboxDeclarations, OutboxDelivery, OutboxAdmin, Protocol):
    """Outboxes at rest: how their delivery stands, and the messages that are put aside."""
