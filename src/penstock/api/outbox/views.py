"""Outboxes and their messages as programs see them: values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from penstock.api.tasks.views import plain_key
from penstock.changes.change import CapturedChange, read_values
from penstock.errors import LimitExceeded, ValueInvalid
from penstock.outbox.message import KIND_OF, TOPIC, message_id
from penstock.outbox.trouble import Trouble
from penstock.store.contract.changes import Lag
from penstock.store.contract.outboxes import Aside, AsideCount, AsideState, OutboxRow
from penstock.values import check_nesting

MessageState = Literal["failing", "halted", "parked", "waiting"]

_FADES = 60.0  # seconds after which a rate is one of the past


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """The status of an outbox.

    Attributes:
        name: Its name.
        source: The table whose rows it sends, or its topic.
        handler: The name of its handler.
        kind: ``action`` or ``mutation``.
        spec: The other options of its last declaration.
        version: The version of its declaration.
        keep_for: How long its messages are kept at least.
        declared: Whether this program declares it; if not, its messages wait for one that does.
        paused: Whether nothing of it is sent, until it is resumed.
        halted: Whether it, or a key of it, waits for a message whose attempts are used up, or for somebody to look
            after it.
        position: Its position in the change feed, as `move` takes it; None if it has none any more.
        messages: How many messages are still to be delivered, those that wait or are halted included and those parked
            not; of each kind up to 100,000 are counted. Older rows that are still to be sent are not counted.
        seconds: The age of the oldest of these.
        waiting: How many wait for others of their key, or for older rows. While these come in an order, changes of rows
            that were handed over are counted too, here and in `messages`, and are passed by in the end.
        waits_for: The number of keys that wait for a failed message.
        parked: How many were put aside, as their attempts were used up.
        older_rows: How many of the rows that were there before it were sent, if it is sending those; None if not.
        delivered: The number of delivered messages.
        delivered_at: The time of the last delivery.
        rate: Delivered messages per second, over about the last minute.
        read_by: The process that delivers; None if none does.
        error: The error of the next message, or the reason why the outbox is halted; None if there is neither.
        retry_at: The time of the next retry of a failed message; None if none is planned.
    """

    name: str
    source: str
    handler: str
    kind: str
    spec: Mapping[str, Any]
    version: int
    keep_for: timedelta
    declared: bool
    paused: bool
    halted: bool
    position: str | None
    messages: int
    seconds: float
    waiting: int
    waits_for: int
    parked: int
    older_rows: int | None
    delivered: int
    delivered_at: datetime | None
    rate: float
    read_by: str | None
    error: str | None
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """A message that is not delivered.

    Attributes:
        number: Its number, by which it is retried and skipped.
        state: ``failing``, if it is the next one and has failed; ``halted``, if it has failed and those of its key wait
            for it; ``parked``; or ``waiting``.
        id: Its `Message.id`; None if the message cannot be found any more.
        kind: ``insert``, ``update``, ``delete``, ``truncate`` or ``message``; ``lost`` if something could not be
            captured; None as for `id`.
        key: The key of its row, or the key that was sent along.
        content: The captured row, the payload that was sent to the topic, or the row before it was deleted.
        written_at: When it was written; None as for `id`, and of a row that is older than its outbox.
        attempts: How many attempts have failed.
        failed_at: When the first one did.
        retry_at: The time of its next retry; None if none is planned.
        error: The error of the last attempt.
        traceback: Its traceback.
    """

    number: int
    state: MessageState
    id: str | None
    kind: str | None
    key: str | None
    content: Any
    written_at: datetime | None
    attempts: int
    failed_at: datetime | None
    retry_at: datetime | None
    error: str | None
    traceback: str | None


@dataclass(frozen=True, slots=True)
class OutboxPage:
    """Some messages of an outbox.

    Attributes:
        messages: The messages.
        next: The cursor of the next page, for `after`; None if this was the last page.
    """

    messages: list[OutboxMessage]
    next: int | None


@dataclass(frozen=True, slots=True)
class Found:
    """An outbox in the store: its row, its reader, its unread and its set-aside messages."""

    row: OutboxRow
    position: str | None
    lag: Lag
    aside: Mapping[AsideState, AsideCount]
    next_is: Aside | None  # the next message, if it was set aside
    retry_at: datetime | None
    read_by: str | None
    declared: bool


def read_place(text: str) -> str | datetime:
    """A place as `app.outboxes.move` takes it, from a text."""
    if text in {"beginning", "end"} or text.startswith("{"):
        return text
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    raise ValueInvalid(
        f"{text[:100]!r} is neither beginning, nor end, nor a time with its offset, nor a position.",
        fix="Write a time as 2030-05-01T09:00Z.",
    )


def status_of(found: Found, now: datetime) -> OutboxStatus:
    """The status of an outbox."""
    row, plan, trouble = found.row, found.row.plan, found.row.trouble
    numbers = {state: one.number for state, one in found.aside.items()}
    waiting = numbers.get("waiting", 0) - (found.next_is is not None and found.next_is.state == "waiting")
    pending = [one for state, one in found.aside.items() if state != "parked"]
    oldest = [one.oldest_at for one in pending] + ([] if found.lag.oldest_at is None else [found.lag.oldest_at])
    since = None if row.delivered_at is None else (now - row.delivered_at).total_seconds()
    return OutboxStatus(
        name=plan.name,
        source=plan.source,
        handler=plan.function,
        kind=plan.kind,
        spec=json.loads(plan.spec),
        version=plan.version,
        keep_for=plan.keep_for,
        declared=found.declared,
        paused=row.paused,
        halted=(trouble is not None and trouble.halted)
        or ("halted" in found.aside and found.aside["halted"].used_up > 0),
        position=found.position,
        messages=max(0, found.lag.rows - sum(number != 0 for number, _ in row.passed))
        + sum(one.number for one in pending),
        seconds=max(0.0, (now - min(oldest)).total_seconds()) if oldest else 0.0,
        waiting=max(0, waiting),  # the next message may have been set aside since they were counted
        waits_for=numbers.get("halted", 0),
        parked=numbers.get("parked", 0),
        older_rows=None if row.backfill is None else json.loads(row.backfill)["count"],
        delivered=row.delivered,
        delivered_at=row.delivered_at,
        rate=0.0 if since is None else row.rate * min(1.0, max(0.0, 1 - since / _FADES)),
        read_by=found.read_by,
        error=None if trouble is None else trouble.error,
        retry_at=min(
            (at for at in (found.retry_at, None if trouble is None else trouble.retry_at) if at is not None),
            default=None,
        ),
    )


def failing_message(outbox: str, trouble: Trouble, change: CapturedChange | None) -> OutboxMessage:
    """The next message, which has failed, as far as it can be found."""
    return _message(outbox, trouble.seq, "failing", trouble.key, change, trouble)


def aside_message(outbox: str, one: Aside) -> OutboxMessage:
    """A message that was set aside."""
    return _message(outbox, one.change.seq, one.state, one.change.key, one.change, one.trouble)


def _message(
    outbox: str,
    number: int,
    state: MessageState,
    key: str | None,
    change: CapturedChange | None,
    trouble: Trouble | None,
) -> OutboxMessage:
    return OutboxMessage(
        number=number,
        state=state,
        id=None if change is None else message_id(outbox, change),
        kind=None if change is None else KIND_OF.get(change.kind, change.kind),
        key=_plain(key) if change is None or change.kind != TOPIC else key,
        content=None if change is None else _content(change),
        written_at=None if change is None or number < 0 else change.changed_at,  # unknown for older rows
        attempts=0 if trouble is None else trouble.attempts,
        failed_at=None if trouble is None or not trouble.attempts else trouble.since,
        retry_at=None if trouble is None or state == "parked" else trouble.retry_at,
        error=None if trouble is None else trouble.error,
        traceback=None if trouble is None else trouble.traceback,
    )


def _plain(key: str | None) -> str | None:
    """The key of a row as users write it."""
    return str(plain_key(key)) if key is not None and key.startswith("[") else key


def _content(change: CapturedChange) -> Any:
    text = change.after if change.after is not None else change.before
    if text is None:
        return None
    try:
        content = json.loads(text) if change.kind == TOPIC else read_values(text)
        check_nesting(content, "A message")
    except (ValueError, RecursionError, LimitExceeded):  # plain SQL keeps to no rules
        return text
    return content
