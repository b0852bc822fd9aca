"""Outboxes and their messages as programs see them: read from the store, and made values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from shlex import quote
from typing import Any, Literal

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.api.tasks.views import plain_key
from penstock.changes.change import CapturedChange, read_values
from penstock.dataclass import dataclass
from penstock.errors import LimitExceeded, OutboxNotFound, ValueInvalid
from penstock.functions.function import find_named
from penstock.observe.readable import amount
from penstock.outbox.backfill import BEFORE_ALL
from penstock.outbox.message import KIND_OF, TOPIC, message_id
from penstock.outbox.outbox import reader_name
from penstock.outbox.trouble import Trouble
from penstock.store.nouns.changes import Lag
from penstock.store.nouns.outboxes import Aside, AsideCount, AsideState, OutboxRow
from penstock.store.session import reading
from penstock.store.store import Store
from penstock.values import check_nesting

MessageState = Literal["failing", "halted", "parked", "waiting"]

MOST_COUNTED = 100_000
_FADES = 60.0  # seconds after which a rate is one of the past
_AT_ONCE = 2000
_ASIDE_AT_ONCE = 50
_LARGEST_PAGE = 8 * 2**20  # bytes, about: a message has up to some MiB
_ASIDE: tuple[AsideState, ...] = ("waiting", "halted", "parked")


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
        messages: How many messages are still to be delivered, with waiting and halted ones and without parked ones; of
            each kind up to 100,000 are counted. Older rows that are still to be sent are not counted.
        seconds: The age of the oldest of these.
        waiting: How many wait for others of their key, or for older rows. While these come in an order, changes of rows
            that were handed over count too, here and in `messages`.
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


# ----- read from the store


async def outbox_of(store: Store, name: str) -> OutboxRow:
    """An outbox by its name, with or without its module; `OutboxNotFound` if the database knows none."""
    found = find_named(await store.outboxes.list(), name, lambda row: row.plan.name)
    if found is None:
        raise OutboxNotFound(
            f"The database knows no outbox {name!r}.",
            fix="Start the program that declares it once; see penstock outbox.",
        )
    return found


async def look_at(
    store: Store,
    rows: Sequence[OutboxRow],
    now: datetime,
    find: Callable[[str], object],
    most: int = MOST_COUNTED,
) -> list[OutboxStatus]:
    """The status of some outboxes, with up to `most` messages of each counted; `find` gives those of this program."""
    readers = {one.name: one for one in await store.changes.readers()}
    async with reading(store.begin_read) as session:
        leases = {one.lease: one.holder for one in await store.leases.list(session)}
    aside: dict[int, dict[AsideState, AsideCount]] = {}
    for one in await store.outboxes.backlog(most):
        aside.setdefault(one.outbox, {})[one.state] = one
    found = []
    for row in rows:
        reader, put = readers.get(reader_name(row.plan.name)), aside.get(row.id, {})
        lag = Lag(0, None) if reader is None else await store.changes.lag(reader.position, most, row.interests)
        again_at = [
            None if row.trouble is None else row.trouble.retry_at,
            await store.outboxes.next_retry(row.id) if "halted" in put else None,
        ]
        status = _status(
            row,
            lag,
            put,
            await _next_aside(store, row),
            now,
            declared=bool(find(row.plan.name)),
            position=None if reader is None else str(reader.position),
            read_by=None if reader is None or reader.lease is None else leases.get(reader.lease),
            retry_at=min((at for at in again_at if at is not None), default=None),
        )
        found.append(status)
    return found


async def look_at_one(
    store: Store, name: str, now: datetime, find: Callable[[str], DeclaredOutbox | None]
) -> tuple[OutboxStatus, list[OutboxMessage]]:
    """The status of one outbox, and the message that blocks it, or its key, if there is one."""
    row = await outbox_of(store, name)
    (status,) = await look_at(store, [row], now, find)
    return status, (await messages_of(store, row, ("failing", "halted"), 1, None, find(row.plan.name))).messages


async def messages_of(
    store: Store,
    row: OutboxRow,
    states: Sequence[MessageState],
    limit: int,
    after: int | None,
    declared: DeclaredOutbox | None,
) -> OutboxPage:
    """Messages of an outbox that have failed, or wait for one that has; fewer than `limit` if they are large."""
    found: list[OutboxMessage] = []
    trouble, size = row.trouble, 0
    if after is None and trouble is not None and trouble.seq and "failing" in states:
        found.append(
            _message(row.plan.name, trouble.seq, "failing", trouble.key, await _change(store, row, trouble), trouble)
        )
    wanted = [state for state in _ASIDE if state in states]
    following, more = BEFORE_ALL if after is None else after, bool(wanted)
    while more and len(found) < limit and size < _LARGEST_PAGE:
        at_once = min(limit - len(found), _ASIDE_AT_ONCE)
        put = await store.outboxes.aside(row.id, wanted, at_once, following)
        found += [
            _message(row.plan.name, one.change.seq, one.state, one.change.key, one.change, one.trouble)
            for one in put
            if not _is_next(one, trouble)
        ]
        size += sum(map(_size, put))
        following, more = put[-1].change.seq if put else following, len(put) == at_once
    if declared is not None:
        found = [replace(one, content=declared.mask(one.content)) for one in found]
    return OutboxPage(found, following if more else None)


def _size(one: Aside) -> int:
    texts = (one.change.before, one.change.after, None if one.trouble is None else one.trouble.traceback)
    return sum(len(text) for text in texts if text is not None)


async def _change(store: Store, row: OutboxRow, trouble: Trouble) -> CapturedChange | None:
    """The next message, which has failed; None if it is gone."""
    if (put := await _next_aside(store, row)) is not None:
        return put.change
    if trouble.seq < 0:
        return await _older(store, row, trouble)
    reader = next((one for one in await store.changes.readers() if one.name == reader_name(row.plan.name)), None)
    if reader is None:
        return None
    batch = await store.changes.read(reader.position, _AT_ONCE, row.interests)
    return next((one for one in batch.changes if one.seq == trouble.seq), None)


async def _next_aside(store: Store, row: OutboxRow) -> Aside | None:
    """The next message, which has failed, if it was set aside before."""
    if row.trouble is None or not row.trouble.seq:
        return None
    put = await store.outboxes.aside(row.id, _ASIDE, 1, row.trouble.seq - 1)
    return next((one for one in put if _is_next(one, row.trouble)), None)


def _is_next(one: Aside, trouble: Trouble | None) -> bool:
    """Whether a message that was set aside is the next one; it stays there until it is delivered."""
    return trouble is not None and one.state != "parked" and trouble.is_of(one.change)


async def _older(store: Store, row: OutboxRow, trouble: Trouble) -> CapturedChange | None:
    """A row that is older than its outbox, as it is now."""
    source = await store.interests.source(row.interests[-1])
    if source is None or trouble.key is None:
        return None
    async with reading(store.begin_read) as session:
        rows = await session.fetch(source.among, [f"[{trouble.key}]"])
    return next(
        (CapturedChange(trouble.seq, row.interests[-1], "enter", key, None, after, trouble.since)
         for key, after, _before in rows),
        None,
    )  # fmt: skip


# ----- made values


def _status(
    row: OutboxRow,
    lag: Lag,
    aside: Mapping[AsideState, AsideCount],
    next_aside: Aside | None,
    now: datetime,
    **others: Any,
) -> OutboxStatus:
    plan, trouble = row.plan, row.trouble
    numbers = {state: one.number for state, one in aside.items()}
    waiting = numbers.get("waiting", 0) - (next_aside is not None and next_aside.state == "waiting")
    pending = [one for state, one in aside.items() if state != "parked"]
    oldest = [one.oldest_at for one in pending] + ([] if lag.oldest_at is None else [lag.oldest_at])
    since = None if row.delivered_at is None else (now - row.delivered_at).total_seconds()
    return OutboxStatus(
        name=plan.name,
        source=plan.source,
        handler=plan.function,
        kind=plan.kind,
        spec=json.loads(plan.spec),
        version=plan.version,
        keep_for=plan.keep_for,
        paused=row.paused,
        halted=(trouble is not None and trouble.halted) or ("halted" in aside and aside["halted"].used_up > 0),
        messages=max(0, lag.rows - sum(number != 0 for number, _ in row.passed)) + sum(one.number for one in pending),
        seconds=max(0.0, (now - min(oldest)).total_seconds()) if oldest else 0.0,
        waiting=max(0, waiting),  # the next message may have been set aside since they were counted
        waits_for=numbers.get("halted", 0),
        parked=numbers.get("parked", 0),
        older_rows=None if row.backfill is None else json.loads(row.backfill)["count"],
        delivered=row.delivered,
        delivered_at=row.delivered_at,
        rate=0.0 if since is None else row.rate * min(1.0, max(0.0, 1 - since / _FADES)),
        error=None if trouble is None else trouble.error,
        **others,
    )


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


def advice(one: OutboxStatus, found: Sequence[OutboxMessage]) -> Iterator[tuple[str, str]]:
    """Advice for a person about an outbox, with the command for it, if it has one; `found` are its first messages."""
    name, again = quote(one.name), ""
    if number := next((it.number for it in found if it.state in {"failing", "halted"}), None):
        said = f"-- {number}" if number < 0 else number
        again = f"penstock outbox retry {name} {said}, or: penstock outbox skip {name} --reason … {said}"
    if not one.declared and one.read_by is None:
        told = (
            "This program does not declare it, and nobody delivers its messages: its handler was renamed or removed. "
            f"They wait for a program that declares it under this name, as name={one.name!r} does. "
        )
        yield f"{told}To let it go: penstock outbox drop {name}", ""
    elif one.position is None:
        yield "Its reader is gone. Start the program once: it halts the outbox, and says what can be done.", ""
    elif one.halted and not found:
        yield "It waits for a person. Rebuild it, move it, or retry.", f"penstock outbox rebuild {name}"
    elif one.halted:
        yield "Messages wait for one whose attempts are used up. Fix the cause and retry it, or skip it.", again
    elif one.paused:
        told = "It is paused: new messages are kept, and the change feed grows. Resume it."
        yield told, f"penstock outbox resume {name}"
    elif one.error is not None:
        yield "It tries the message again by itself. Retry does so now.", again
    if one.parked:
        told = f"{amount(one.parked, 'message')} parked: retry or skip them. All others are delivered."
        yield told, f"penstock outbox retry {name}"


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
