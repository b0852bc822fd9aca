"""What verbs about outboxes take and give (`store.nouns.outboxes`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from penstock.changes.change import CapturedChange
from penstock.outbox.trouble import Trouble
from penstock.store.nouns.tasks import Move

AsideState = Literal["waiting", "halted", "parked"]
Forgets = Literal["again", "pending", "all"]

Identity = tuple[int, str | None]  # of a message: its number; of an older row 0 and its key, as its number may change

KEPT = "kept"  # instead of a backfill: the one before


@dataclass(frozen=True, slots=True)
class OutboxPlan:
    """An outbox as a program declares it to the store."""

    name: str
    function: str  # the name of its handler
    kind: str
    source: str  # the table or the topic that it sends
    spec: str  # the other options, as JSON, to be shown
    version: int  # of the declaration
    keep_for: timedelta  # how long messages are kept at least


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An outbox as it is kept."""

    id: int
    plan: OutboxPlan  # its last declaration
    # the numbers under which its messages are in the change feed, those of earlier declarations too
    interests: tuple[int, ...]
    declared_at: datetime  # when it was
    epoch: int  # the number of changes by others than the relay that reads it
    ready: bool  # whether its changes are captured
    paused: bool
    backfill: str | None  # the rest of the backfill, as `outbox.backfill` writes it; None if that is done
    skips: tuple[int, ...]  # the numbers of messages that are passed by
    trouble: Trouble | None  # the trouble of the next message, if it has failed
    delivered: int  # the number of delivered messages
    delivered_at: datetime | None  # the time of the last delivery
    rate: float = 0.0  # deliveries per second, over about a minute until then
    # the declarations under which changes were captured, by these numbers, as `outbox.criteria` writes them
    meanings: Mapping[int, str] = field(default_factory=dict)
    passed: frozenset[Identity] = frozenset()  # messages behind the one that is next which are done with already
    fence: int = 0  # the fencing number of its reader, which rises with each lease that takes it; 0 if none ever has


@dataclass(frozen=True, slots=True)
class AsideCount:
    """The number of messages of an outbox that are set aside in one state."""

    outbox: int
    state: AsideState
    number: int  # their number, as far as they were counted
    oldest_at: datetime  # the time at which the first of them was written
    used_up: int  # the number of those whose attempts are used up


@dataclass(frozen=True, slots=True)
class Aside:
    """A message that is not next any more, and not delivered."""

    change: CapturedChange  # its change
    key: str  # the key by which it is ordered
    # ``waiting`` for others to be delivered; ``halted``, as it has failed, and those of its key wait for it;
    # ``parked``, as it has failed, and nobody waits for it
    state: AsideState
    trouble: Trouble | None = None  # its trouble, if it has failed
    # whether it is delivered as an insert, and is a mere change in the feed: its row was older than the outbox, and
    # changed before the backfill delivered it
    as_insert: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a relay, written together, if the outbox and its reader are as the relay knows them."""

    outbox: OutboxRow  # the outbox as the relay knows it
    move: Move  # the move of its reader; none if its ends are the same
    backfill: str | None  # the rest of the backfill then
    trouble: Trouble | None = None  # the trouble of the next message then
    delivered: int = 0  # the number of messages delivered since
    put: Sequence[Aside] = ()  # messages that are put aside; one that was put aside before is written anew
    taken: Sequence[int] = ()  # the numbers of those that are aside no more
    skipped: Sequence[int] = ()  # the numbers of messages that were passed by, as was asked for
    passed: frozenset[Identity] = frozenset()  # all messages behind the one that is next then which are done with
