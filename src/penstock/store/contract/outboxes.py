"""What verbs about outboxes take and give (`store.nouns.outboxes`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from penstock.changes.change import CapturedChange
from penstock.outbox.trouble import Trouble
from penstock.store.contract.tasks import Move

AsideState = Literal["waiting", "halted", "parked"]
Forgets = Literal["again", "pending", "all"]

Identity = tuple[int, str | None]  # of a message: its number; of an older row 0 and its key, as its number may change

KEPT = "kept"  # instead of a backfill: the one before


@dataclass(frozen=True, slots=True)
class OutboxPlan:
    """An outbox as a program declares it to the store.

    Attributes:
        function: The name of its handler.
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
        plan: Its last declaration.
        interests: The numbers under which its messages are in the change feed, those of earlier declarations too.
        declared_at: When it was.
        epoch: The number of changes by others than the relay that reads it.
        ready: Whether its changes are captured.
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
        as_insert: Whether it is delivered as an insert, and is a mere change in the feed: its row was older than the
            outbox, and changed before the backfill delivered it.
    """

    change: CapturedChange
    key: str
    state: AsideState
    trouble: Trouble | None = None
    as_insert: bool = False


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
