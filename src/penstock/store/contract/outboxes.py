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
