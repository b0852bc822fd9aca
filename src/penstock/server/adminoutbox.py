"""``/admin/outbox``: outboxes and the messages that they cannot deliver, seen and changed over HTTP.

Owns the routes and their answers. Their words have the meaning they have in `app.outboxes` and ``penstock outbox``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from penstock.api.outbox.outboxes import STATES
from penstock.api.outbox.rebuilding import reset_of
from penstock.api.outbox.views import MessageState, OutboxMessage, look_at_one, outbox_of, read_place
from penstock.app import Backend
from penstock.errors import ContextError, DataError, OutboxNotFound, ResultInvalid
from penstock.server.adminwords import LISTED, MOST_LISTED, AdminRoute, Words, needed
from penstock.server.requests import Refused
from penstock.wire.outgoing import Format, encode_result


async def _list(backend: Backend, _words: Words) -> Any:
    return {"outboxes": await backend.app.outboxes.list(backend)}


async def _show(backend: Backend, words: Words) -> Any:
    store, find = backend.engine.store, backend.app.outboxes.find
    status, found = await look_at_one(store, needed(words.text, "outbox"), backend.job_calls.now(), find)
    return {"outbox": status, "messages": await asyncio.to_thread(_sayable, found)}


async def _messages(backend: Backend, words: Words) -> Any:
    states = cast("tuple[MessageState, ...]", words.texts("state", commas=True) or STATES)
    limit, after = words.number("limit", LISTED, MOST_LISTED), words.integer("after")
    outboxes, outbox = backend.app.outboxes, needed(words.text, "outbox")
    page = await outboxes.messages(backend, outbox, states=states, limit=limit, after=after)
    return {"messages": await asyncio.to_thread(_sayable, page.messages), "next": page.next}


async def _retry(backend: Backend, words: Words) -> Any:
    numbers, name = words.integers("number"), await _name(backend, words)
    return {"outbox": name, "retried": await backend.app.outboxes.retry(backend, name, numbers)}


async def _skip(backend: Backend, words: Words) -> Any:
    number, reason = needed(words.integer, "number"), needed(words.text, "reason")
    name = await _name(backend, words)
    try:
        await backend.app.outboxes.skip(backend, name, number, reason)
    except DataError as error:
        if isinstance(error, OutboxNotFound):
            raise
        raise Refused(404, "MessageNotFound", str(error)) from error
    return {"outbox": name, "number": number, "skipped": True}


async def _set(verb: str, told: dict[str, bool], backend: Backend, words: Words) -> Any:
    name = await _name(backend, words)
    await getattr(backend.app.outboxes, verb)(backend, name)
    return {"outbox": name, **told}


async def _move(backend: Backend, words: Words) -> Any:
    place, name = read_place(needed(words.text, "to")), await _name(backend, words)
    moved = await backend.app.outboxes.move(backend, name, place)
    return {"outbox": name, "position": moved.position, "messages": moved.messages, "older_rows": moved.older_rows}


async def _rebuild(backend: Backend, words: Words) -> Any:
    name = await _name(backend, words)
    try:
        reset_of(backend.app.outboxes.find(name), name)
    except ContextError as error:
        raise Refused(409, "NotRebuildable", str(error)) from error
    await backend.app.outboxes.rebuild(backend, name)
    return {"outbox": name, "rebuilding": True}


async def _resend(backend: Backend, words: Words) -> Any:
    where, name = needed(words.text, "where"), await _name(backend, words)
    try:
        count = await backend.app.outboxes.resend(backend, name, where)
    except ContextError as error:
        raise Refused(409, "NotResendable", str(error)) from error
    return {"outbox": name, "resent": count}


OUTBOX_ROUTES = (
    AdminRoute("/outbox", (), _list),
    AdminRoute("/outbox/show", ("outbox",), _show),
    AdminRoute("/outbox/messages", ("outbox", "state", "limit", "after"), _messages),
    AdminRoute("/outbox/retry", ("outbox", "number"), _retry, changes=True),
    AdminRoute("/outbox/skip", ("outbox", "number", "reason"), _skip, changes=True),
    AdminRoute("/outbox/pause", ("outbox",), partial(_set, "pause", {"paused": True}), changes=True),
    AdminRoute("/outbox/resume", ("outbox",), partial(_set, "resume", {"paused": False}), changes=True),
    AdminRoute("/outbox/move", ("outbox", "to"), _move, changes=True),
    AdminRoute("/outbox/rebuild", ("outbox",), _rebuild, changes=True),
    AdminRoute("/outbox/resend", ("outbox", "where"), _resend, changes=True),
    AdminRoute("/outbox/drop", ("outbox",), partial(_set, "drop", {"dropped": True}), changes=True),
)


# ----- steps


async def _name(backend: Backend, words: Words) -> str:
    return (await outbox_of(backend.engine.store, needed(words.text, "outbox"))).plan.name


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
