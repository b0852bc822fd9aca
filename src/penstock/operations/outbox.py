"""The operations on outboxes and their messages: see `app.outboxes` for what each verb does.

Owns what is refused before anybody is asked. An outbox is named with or without its module, a message by its number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.api.outbox.outboxes import STATES
from penstock.api.outbox.rebuilding import reset_of, rows_to_send
from penstock.api.outbox.views import OutboxMessage, OutboxPage, OutboxStatus, look_at_one, outbox_of, read_place
from penstock.app import Backend
from penstock.changes.position import Position
from penstock.errors import ContextError, DataError, ResultInvalid
from penstock.observe.readable import amount
from penstock.operations.operation import Given, Noun, Parameter, Question, Refusal
from penstock.wire.outgoing import Format, encode_result

noun = Noun("outbox")
_OUTBOX = Parameter("outbox", needed=True)


async def _name(backend: Backend, given: Given) -> str:
    """Find the whole name of the outbox."""
    return (await outbox_of(backend.engine.store, given["outbox"])).plan.name


async def _status(backend: Backend, given: Given) -> OutboxStatus:
    name = await _name(backend, given)
    return next(one for one in await backend.app.outboxes.list(backend) if one.name == name)


# ----- to see


def _make_sayable(messages: Sequence[OutboxMessage]) -> list[OutboxMessage]:
    """Replace contents that cannot be sent, such as integers over 64 bits, by JSON as text."""
    found = []
    for one in messages:
        try:
            encode_result(one.content, Format.CLEAN)
        except ResultInvalid:
            found.append(replace(one, content=json.dumps(one.content, default=str)))
        else:
            found.append(one)
    return found


@noun.lists()
async def every(backend: Backend, _given: Given) -> Any:
    """Show all outboxes and their backlog.

    Counts up to 100,000 messages per outbox.
    """
    return {"outboxes": await backend.app.outboxes.list(backend)}


@noun.shows(_OUTBOX, answers=lambda found: {"outbox": found[0], "messages": _make_sayable(found[1])})
async def show(backend: Backend, given: Given) -> tuple[OutboxStatus, list[OutboxMessage]]:
    """Show the state of OUTBOX, and the message that blocks it, with its traceback."""
    store, find = backend.engine.store, backend.app.outboxes.find
    return await look_at_one(store, given["outbox"], backend.job_calls.now(), find)


_PAGE = (
    Parameter("state", "choices", "Only messages in this state; may be repeated.", choices=STATES),
    Parameter("limit", "page", "How many messages to list.", default=50, most=10_000),
    Parameter("after", "number", "Continue after this number, from the last list.", metavar="NUMBER"),
)


@noun.shows(_OUTBOX, *_PAGE, answers=lambda page: {"messages": _make_sayable(page.messages), "next": page.next})
async def messages(backend: Backend, given: Given) -> OutboxPage:
    """Show messages of OUTBOX that failed, are parked, or wait for a failed one.

    Omits messages that were not attempted yet.
    """
    states, limit, after = given.get("state") or STATES, given["limit"], given.get("after")
    return await backend.app.outboxes.messages(backend, given["outbox"], states=states, limit=limit, after=after)


# ----- to change messages


def _tell_of_retry(given: Given, found: Any) -> str:
    outbox, count = given["outbox"], found["retried"]
    if given["number"] and not count:
        raise DataError(f"Outbox {outbox} has no such message that has failed.", fix="See penstock outbox messages.")
    return f"{amount(count, 'message')} of {outbox} will be retried." if count else f"{outbox} has none that failed."


@noun.changes(_OUTBOX, Parameter("number", "numbers", metavar="[NUMBERS]..."), tells=_tell_of_retry)
async def retry(backend: Backend, given: Given) -> Any:
    """Retry failed messages of OUTBOX now: those with these NUMBERS, or all.

    Their attempts count from one. Parked messages are delivered next, but not while the next message waits for its
    retry. A row older than the outbox has a negative number: write -- before it.
    """
    name, numbers = await _name(backend, given), given.get("number") or None
    return {"outbox": name, "retried": await backend.app.outboxes.retry(backend, name, numbers)}


async def _ask_to_skip(backend: Backend, given: Given) -> Question:
    """Refuse a message that has not failed, before anybody is asked."""
    name, number, listed = await _name(backend, given), given["number"], backend.app.outboxes.messages
    next_one = await listed(backend, name, states=("failing",), limit=1)
    aside = await listed(backend, name, states=("halted", "parked"), limit=1, after=number - 1)
    if number not in {one.number for one in (*next_one.messages, *aside.messages)}:
        raise DataError(f"Outbox {name} has no message {number} that has failed.", fix="See penstock outbox messages.")
    return Question(f"Skip message {number} of {name} for good?")


@noun.changes(
    _OUTBOX,
    Parameter("number", "number", needed=True),
    Parameter("reason", about="The reason, for the log.", needed=True),
    asks=_ask_to_skip,
    tells="Message {number} of {outbox} is skipped.",
    refusals={DataError: Refusal(404, "MessageNotFound")},
)
async def skip(backend: Backend, given: Given) -> Any:
    """Skip a failed message of OUTBOX. Its handler never gets it."""
    name, number = await _name(backend, given), given["number"]
    await backend.app.outboxes.skip(backend, name, number, given["reason"])
    return {"outbox": name, "number": number, "skipped": True}


# ----- to change outboxes


@noun.changes(_OUTBOX, tells="{outbox} is paused. The change feed keeps new messages, and grows.")
async def pause(backend: Backend, given: Given) -> Any:
    """Pause OUTBOX on all machines. New messages are kept."""
    name = await _name(backend, given)
    await backend.app.outboxes.pause(backend, name)
    return {"outbox": name, "paused": True}


@noun.changes(_OUTBOX, tells="{outbox} is resumed.")
async def resume(backend: Backend, given: Given) -> Any:
    """Resume a paused OUTBOX."""
    name = await _name(backend, given)
    await backend.app.outboxes.resume(backend, name)
    return {"outbox": name, "paused": False}


def _count_left(one: OutboxStatus) -> str:
    messages = [amount(one.messages, "message")] if one.messages else []
    rows = ["older rows"] if one.older_rows is not None else []
    return " and ".join([*messages, *rows]) or "no messages"


async def _ask_to_move(backend: Backend, given: Given) -> Question:
    place, to, before = read_place(given["to"]), given["to"], await _status(backend, given)
    if isinstance(place, str) and place not in {"beginning", "end"}:
        Position.parse(place)  # refuse a wrong place before asking anybody
    end = "None of these will be delivered." if to == "end" else "Messages are skipped, or delivered again."
    return Question(f"Move {before.name} to {to}?", f"{before.name} has {_count_left(before)} to deliver.\n{end}")


def _describe_place(one: OutboxStatus) -> Any:
    return {"outbox": one.name, "position": one.position, "messages": one.messages, "older_rows": one.older_rows}


@noun.changes(
    _OUTBOX,
    Parameter("to", about="beginning, end, a time, or a position.", needed=True, metavar="PLACE"),
    asks=_ask_to_move,
    tells=lambda _given, moved: f"{moved.name} is moved, and has {_count_left(moved)} to deliver.",
    answers=_describe_place,
)
async def move(backend: Backend, given: Given) -> OutboxStatus:
    """Move the cursor of OUTBOX, to deliver kept messages again or to skip some.

    PLACE is beginning (the oldest kept message) or end (after all messages). It may be a time with an offset, such as
    2030-05-01T09:00Z, for messages written since, or a position from penstock outbox show.
    """
    place = read_place(given["to"])
    return await backend.app.outboxes.move(backend, await _name(backend, given), place)


async def ask_to_resend(backend: Backend, given: Given) -> Question:
    """Ask, after a look whether this program can read the condition."""
    name, where = await _name(backend, given), given["where"]
    rows_to_send(backend.app.outboxes.find(name), name, where)
    return Question(f"Send rows of {name} again?", f"Its handler gets each row that matches: {where}")


@noun.changes(
    _OUTBOX,
    Parameter("where", about="A condition, such as 'day >= 7 and shop == \"a\"'.", needed=True, metavar="TEXT"),
    asks=ask_to_resend,
    tells=lambda given, found: f"{amount(found['resent'], 'row')} will be sent again by {given['outbox']}.",
    refusals={ContextError: Refusal(409, "NotResendable")},
)
async def resend(backend: Backend, given: Given) -> Any:
    """Send rows of OUTBOX's table again, as they are now and in order, after its backlog."""
    name = await _name(backend, given)
    return {"outbox": name, "resent": await backend.app.outboxes.resend(backend, name, given["where"])}


async def _ask_to_rebuild(backend: Backend, given: Given) -> Question:
    name = await _name(backend, given)
    reset_of(backend.app.outboxes.find(name), name)  # refuse an impossible request before asking anybody
    cleared = f"The effects of {name} are cleared, and incomplete until all rows are delivered."
    return Question(f"Rebuild {name}?", cleared)


@noun.changes(
    _OUTBOX,
    asks=_ask_to_rebuild,
    tells="{outbox} starts again with all rows. penstock outbox show {outbox} shows its progress.",
    refusals={ContextError: Refusal(409, "NotRebuildable")},
)
async def rebuild(backend: Backend, given: Given) -> Any:
    """Rebuild what the handler of OUTBOX has written, from the current rows.

    Runs its reset and starts it with all rows again, in one transaction.
    """
    name = await _name(backend, given)
    await backend.app.outboxes.rebuild(backend, name)
    return {"outbox": name, "rebuilding": True}


async def _ask_to_drop(backend: Backend, given: Given) -> Question:
    one = await _status(backend, given)
    read_by = f"\nIt is read by {one.read_by} now." if one.read_by else ""
    aside = f" {amount(one.parked, 'message')} parked will be forgotten." if one.parked else ""
    never = ", and never will" if one.messages or one.older_rows is not None else ""
    left = f"{one.name} has {_count_left(one)} to deliver{never}.{aside}{read_by}"
    return Question(f"Drop {one.name}?", left, found={"declared": one.declared})


def _tell_of_drop(given: Given, _found: Any) -> str:
    told = f"{given['outbox']} is dropped."
    return f"{told} This program declares it, and creates it again at its start." if given["declared"] else told


@noun.changes(_OUTBOX, asks=_ask_to_drop, tells=_tell_of_drop)
async def drop(backend: Backend, given: Given) -> Any:
    """Remove OUTBOX: its cursor, its parked messages, and its capture."""
    name = await _name(backend, given)
    await backend.app.outboxes.drop(backend, name)
    return {"outbox": name, "dropped": True}
