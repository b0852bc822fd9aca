"""Outboxes: how far they are, the messages that they cannot deliver, and what can be done about these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from penstock.api.outbox.rebuilding import chosen_rows
from penstock.api.outbox.views import advice, look_at, outbox_of, read_place
from penstock.dashboard.page import Act, Page, View, act_on
from penstock.errors import ValueInvalid
from penstock.observe.readable import counted

_LISTED = 20
_MOST_COUNTED = 10_000  # messages of an outbox


async def _load(view: View) -> Mapping[str, Any]:
    calls = view.backend.job_calls
    rows = await calls.store.outboxes.list()
    found = await look_at(calls.store, rows, calls.now(), view.backend.app.outboxes.find, _MOST_COUNTED)
    found.sort(key=lambda one: (not one.halted, one.error is None, not one.parked, one.name))
    return {"outboxes": found, "most": _MOST_COUNTED}


async def _load_one(view: View) -> Mapping[str, Any]:
    backend, calls = view.backend, view.backend.job_calls
    row = await outbox_of(calls.store, view.needed("outbox"))
    (one,) = await look_at(calls.store, [row], calls.now(), backend.app.outboxes.find, _MOST_COUNTED)
    after = None if view.word("after") is None else _number(view, "after")
    page = await backend.app.outboxes.messages(backend, one.name, limit=_LISTED, after=after)
    declared = backend.app.outboxes.find(one.name)
    resends = declared is not None and declared.outbox.definition is not None and "insert" in declared.outbox.on
    return {
        "one": one,
        "most": _MOST_COUNTED,
        "advice": [text for text, _command in advice(one, page.messages)],
        "messages": page.messages,
        "entries": await view.log(_LISTED, words=[f" {one.handler} "]),
        "more": None if page.next is None else urlencode({"outbox": one.name, "after": page.next}),
        "may_rebuild": declared is not None and declared.reset is not None,
        "may_resend": resends,
    }


def _number(view: View, word: str) -> int:
    try:
        return int(view.needed(word))  # rows that are older than the outbox have negative numbers
    except ValueError:
        raise ValueInvalid(f"{word} is the number of a message.") from None


async def _retry(view: View) -> str:
    numbers = None if view.word("number") is None else [_number(view, "number")]
    count = await view.backend.app.outboxes.retry(view.backend, view.needed("outbox"), numbers)
    return f"{counted(count, 'message')} will be retried."


async def _skip(view: View) -> str:
    name, number = view.needed("outbox"), _number(view, "number")
    await view.backend.app.outboxes.skip(view.backend, name, number, view.needed("reason"))
    return f"Message {number} is skipped."


async def _sure_to_move(view: View) -> str:
    read_place(view.needed("to"))  # refuse a wrong place before asking
    calls = view.backend.job_calls
    row = await outbox_of(calls.store, view.needed("outbox"))
    (one,) = await look_at(calls.store, [row], calls.now(), view.backend.app.outboxes.find, _MOST_COUNTED)
    what = "None of these will be delivered." if view.word("to") == "end" else "Some are skipped, or delivered again."
    return f"Move {one.name}? It has {counted(one.messages, 'message')} to deliver. {what}"


async def _move(view: View) -> str:
    name, to = view.needed("outbox"), read_place(view.needed("to"))
    moved = await view.backend.app.outboxes.move(view.backend, name, to)
    return f"{moved.name} is moved, and has {counted(moved.messages, 'message')} to deliver."


async def _sure_to_resend(view: View) -> str:
    name = view.needed("outbox")
    chosen_rows(view.backend.app.outboxes.find(name), name, view.needed("where"))  # refuse a wrong filter before asking
    return "Send these rows again? The handler gets each row that matches."


async def _resend(view: View) -> str:
    count = await view.backend.app.outboxes.resend(view.backend, view.needed("outbox"), view.needed("where"))
    return f"{counted(count, 'row')} will be sent again."


_PAUSE = {
    "pause": act_on("outboxes", "outbox", "pause", "{} is paused. New messages are kept."),
    "resume": act_on("outboxes", "outbox", "resume", "{} is resumed."),
}
_REBUILD = "Rebuild it? What its handler has written is cleared, and incomplete until all rows are delivered."

PAGES = (
    Page("/outboxes", "Outboxes", "outboxes.html", _load, _PAUSE),
    Page(
        "/outboxes/outbox",
        "Outbox",
        "outbox.html",
        _load_one,
        {
            **_PAUSE,
            "retry": Act(_retry),
            "skip": Act(_skip, sure="Skip this message for good? Its handler never gets it."),
            "move": Act(_move, sure=_sure_to_move),
            "resend": Act(_resend, sure=_sure_to_resend),
            "rebuild": act_on("outboxes", "outbox", "rebuild", "{} starts again with all rows.", _REBUILD),
        },
        above="/outboxes",
    ),
)
