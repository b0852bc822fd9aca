"""What can be done to outboxes and their messages: see `app.outboxes` for what each verb does.

Owns what is refused before anybody is asked. An outbox is named with or without its module, a message by its number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.api.outbox.outboxes import STATES
from penstock.api.outbox.rebuilding import chosen_rows, reset_of
from penstock.api.outbox.views import OutboxMessage, OutboxPage, OutboxStatus, look_at_one, outbox_of, read_place
from penstock.app import Backend
from penstock.changes.position import Position
from penstock.errors import ContextError, DataError, ResultInvalid
from penstock.observe.readable import counted
from penstock.operations.operation import Given, Operation, Parameter, Question, Refusal
from penstock.wire.outgoing import Format, encode_result

_OUTBOX = Parameter("outbox", needed=True)
Looked = tuple[OutboxStatus, list[OutboxMessage]]


async def _name(backend: Backend, given: Given) -> str:
    """The whole name of the outbox."""
    return (await outbox_of(backend.engine.store, given["outbox"])).plan.name


async def _status(backend: Backend, given: Given) -> OutboxStatus:
    name = await _name(backend, given)
    return next(one for one in await backend.app.outboxes.list(backend) if one.name == name)


# ----- to see


async def _list(backend: Backend, _given: Given) -> Any:
    return {"outboxes": await backend.app.outboxes.list(backend)}


async def _show(backend: Backend, given: Given) -> Looked:
    return await look_at_one(backend.engine.store, given["outbox"], backend.job_calls.now(), backend.app.outboxes.find)


async def _messages(backend: Backend, given: Given) -> OutboxPage:
    states, after = given.get("state") or STATES, given.get("after")
    outboxes = backend.app.outboxes
    return await outboxes.messages(backend, given["outbox"], states=states, limit=given["limit"], after=after)


def _sayable(messages: Sequence[OutboxMessage]) -> list[OutboxMessage]:
    """Contents that cannot be sent, such as integers over 64 bits, become JSON as text."""
    found = []
    for one in messages:
        try:
            encode_result(one.content, Format.CLEAN)
        except ResultInvalid:
            found.append(replace(one, content=json.dumps(one.content, default=str)))
        else:
            found.append(one)
    return found


def _shown(found: Looked) -> Any:
    return {"outbox": found[0], "messages": _sayable(found[1])}


LIST = Operation(
    "outbox", "", "Show all outboxes and their backlog.\n\nCounts up to 100,000 messages per outbox.", _list
)
SHOW = Operation(
    "outbox",
    "show",
    "Show the state of OUTBOX, and the message that blocks it, with its traceback.",
    _show,
    (_OUTBOX,),
    answers=_shown,
)
MESSAGES = Operation(
    "outbox",
    "messages",
    "Show messages of OUTBOX that failed, are parked, or wait for a failed one.\n\n"
    "Omits messages that were not attempted yet.",
    _messages,
    (
        _OUTBOX,
        Parameter("state", "choices", "Only messages in this state; may be repeated.", choices=STATES),
        Parameter("limit", "page", "How many messages to list.", default=50, most=10_000),
        Parameter("after", "number", "Continue after this number, from the last list.", metavar="NUMBER"),
    ),
    answers=lambda page: {"messages": _sayable(page.messages), "next": page.next},
)


# ----- to change messages


async def _retry(backend: Backend, given: Given) -> Any:
    name, numbers = await _name(backend, given), given.get("number") or None
    return {"outbox": name, "retried": await backend.app.outboxes.retry(backend, name, numbers)}


def _retried(given: Given, found: Any) -> str:
    outbox, count = given["outbox"], found["retried"]
    if given["number"] and not count:
        raise DataError(f"Outbox {outbox} has no such message that has failed.", fix="See penstock outbox messages.")
    return f"{counted(count, 'message')} of {outbox} will be retried." if count else f"{outbox} has none that failed."


async def _skip(backend: Backend, given: Given) -> Any:
    name, number = await _name(backend, given), given["number"]
    await backend.app.outboxes.skip(backend, name, number, given["reason"])
    return {"outbox": name, "number": number, "skipped": True}


async def _ask_to_skip(backend: Backend, given: Given) -> Question:
    """Refuse a message that has not failed, before anybody is asked."""
    name, number, messages = await _name(backend, given), given["number"], backend.app.outboxes.messages
    next_one = await messages(backend, name, states=("failing",), limit=1)
    aside = await messages(backend, name, states=("halted", "parked"), limit=1, after=number - 1)
    if number not in {one.number for one in (*next_one.messages, *aside.messages)}:
        raise DataError(f"Outbox {name} has no message {number} that has failed.", fix="See penstock outbox messages.")
    return Question(f"Skip message {number} of {name} for good?")


RETRY = Operation(
    "outbox",
    "retry",
    "Retry failed messages of OUTBOX now: those with these NUMBERS, or all.\n\n"
    "Their attempts count from one. Parked messages are delivered next, but not while the next message "
    "waits for its retry. A row older than the outbox has a negative number: write -- before it.",
    _retry,
    (_OUTBOX, Parameter("number", "numbers", metavar="[NUMBERS]...")),
    changes=True,
    tells=_retried,
)
SKIP = Operation(
    "outbox",
    "skip",
    "Skip a failed message of OUTBOX. Its handler never gets it.",
    _skip,
    (
        _OUTBOX,
        Parameter("number", "number", needed=True),
        Parameter("reason", about="The reason, for the log.", needed=True),
    ),
    changes=True,
    asks=_ask_to_skip,
    tells="Message {number} of {outbox} is skipped.",
    refusals={DataError: Refusal(404, "MessageNotFound")},
)


# ----- to change outboxes


async def _pause(backend: Backend, given: Given) -> Any:
    name = await _name(backend, given)
    await backend.app.outboxes.pause(backend, name)
    return {"outbox": name, "paused": True}


async def _resume(backend: Backend, given: Given) -> Any:
    name = await _name(backend, given)
    await backend.app.outboxes.resume(backend, name)
    return {"outbox": name, "paused": False}


async def _move(backend: Backend, given: Given) -> OutboxStatus:
    return await backend.app.outboxes.move(backend, await _name(backend, given), read_place(given["to"]))


async def _ask_to_move(backend: Backend, given: Given) -> Question:
    place, to, before = read_place(given["to"]), given["to"], await _status(backend, given)
    if isinstance(place, str) and place not in {"beginning", "end"}:
        Position.parse(place)  # refuse a wrong place before asking anybody
    end = "None of these will be delivered." if to == "end" else "Messages are skipped, or delivered again."
    return Question(f"Move {before.name} to {to}?", f"{before.name} has {_left(before)} to deliver.\n{end}")


async def _resend(backend: Backend, given: Given) -> Any:
    name = await _name(backend, given)
    return {"outbox": name, "resent": await backend.app.outboxes.resend(backend, name, given["where"])}


async def ask_to_resend(backend: Backend, given: Given) -> Question:
    """Ask, after a look whether this program can read the condition."""
    name, where = await _name(backend, given), given["where"]
    chosen_rows(backend.app.outboxes.find(name), name, where)
    return Question(f"Send rows of {name} again?", f"Its handler gets each row that matches: {where}")


async def _rebuild(backend: Backend, given: Given) -> Any:
    name = await _name(backend, given)
    await backend.app.outboxes.rebuild(backend, name)
    return {"outbox": name, "rebuilding": True}


async def _ask_to_rebuild(backend: Backend, given: Given) -> Question:
    name = await _name(backend, given)
    reset_of(backend.app.outboxes.find(name), name)  # refuse an impossible request before asking anybody
    cleared = f"The effects of {name} are cleared, and incomplete until all rows are delivered."
    return Question(f"Rebuild {name}?", cleared)


async def _drop(backend: Backend, given: Given) -> Any:
    name = await _name(backend, given)
    await backend.app.outboxes.drop(backend, name)
    return {"outbox": name, "dropped": True}


async def _ask_to_drop(backend: Backend, given: Given) -> Question:
    one = await _status(backend, given)
    read_by = f"\nIt is read by {one.read_by} now." if one.read_by else ""
    aside = f" {counted(one.parked, 'message')} parked will be forgotten." if one.parked else ""
    never = ", and never will" if one.messages or one.older_rows is not None else ""
    left = f"{one.name} has {_left(one)} to deliver{never}.{aside}{read_by}"
    return Question(f"Drop {one.name}?", left, found={"declared": one.declared})


def _dropped(given: Given, _found: Any) -> str:
    told = f"{given['outbox']} is dropped."
    return f"{told} This program declares it, and creates it again at its start." if given["declared"] else told


def _left(one: OutboxStatus) -> str:
    messages = [counted(one.messages, "message")] if one.messages else []
    rows = ["older rows"] if one.older_rows is not None else []
    return " and ".join([*messages, *rows]) or "no messages"


PAUSE = Operation(
    "outbox",
    "pause",
    "Pause OUTBOX on all machines. New messages are kept.",
    _pause,
    (_OUTBOX,),
    changes=True,
    tells="{outbox} is paused. The change feed keeps new messages, and grows.",
)
RESUME = Operation(
    "outbox",
    "resume",
    "Resume a paused OUTBOX.",
    _resume,
    (_OUTBOX,),
    changes=True,
    tells="{outbox} is resumed.",
)
MOVE = Operation(
    "outbox",
    "move",
    "Move the cursor of OUTBOX, to deliver kept messages again or to skip some.\n\n"
    "PLACE is beginning (the oldest kept message), end (after all messages), a time with an offset such as "
    "2030-05-01T09:00Z (messages written since), or a position from penstock outbox show.",
    _move,
    (_OUTBOX, Parameter("to", about="beginning, end, a time, or a position.", needed=True, metavar="PLACE")),
    changes=True,
    asks=_ask_to_move,
    tells=lambda _given, moved: f"{moved.name} is moved, and has {_left(moved)} to deliver.",
    answers=lambda one: {
        "outbox": one.name,
        "position": one.position,
        "messages": one.messages,
        "older_rows": one.older_rows,
    },
)
RESEND = Operation(
    "outbox",
    "resend",
    "Send rows of OUTBOX's table again, as they are now and in order, after its backlog.",
    _resend,
    (
        _OUTBOX,
        Parameter("where", about="A condition, such as 'day >= 7 and shop == \"a\"'.", needed=True, metavar="TEXT"),
    ),
    changes=True,
    asks=ask_to_resend,
    tells=lambda given, found: f"{counted(found['resent'], 'row')} will be sent again by {given['outbox']}.",
    refusals={ContextError: Refusal(409, "NotResendable")},
)
REBUILD = Operation(
    "outbox",
    "rebuild",
    "Rebuild what the handler of OUTBOX has written, from the current rows.\n\n"
    "Runs its reset and starts it with all rows again, in one transaction.",
    _rebuild,
    (_OUTBOX,),
    changes=True,
    asks=_ask_to_rebuild,
    tells="{outbox} starts again with all rows. penstock outbox show {outbox} shows its progress.",
    refusals={ContextError: Refusal(409, "NotRebuildable")},
)
DROP = Operation(
    "outbox",
    "drop",
    "Remove OUTBOX: its cursor, its parked messages, and its capture.",
    _drop,
    (_OUTBOX,),
    changes=True,
    asks=_ask_to_drop,
    tells=_dropped,
)

OF_MESSAGES = (RETRY, SKIP)
OF_OUTBOXES = (PAUSE, RESUME, MOVE, RESEND, REBUILD, DROP)
OPERATIONS = (LIST, SHOW, MESSAGES, *OF_MESSAGES, *OF_OUTBOXES)
