"""Outboxes: how far they are, the messages that they cannot deliver, and what can be done about these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from penstock.api.outbox.views import OutboxStatus, advice, look_at, outbox_of, read_place
from penstock.dashboard.charts import charts_of
from penstock.dashboard.page import Page, View, act_of, parameters_of
from penstock.observe.readable import amount
from penstock.operations import outbox
from penstock.operations.operation import Given

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
    row = await outbox_of(calls.store, view.require("outbox"))
    (one,) = await look_at(calls.store, [row], calls.now(), backend.app.outboxes.find, _MOST_COUNTED)
    after = None if view.word("after") is None else view.integer("after")
    page = await backend.app.outboxes.messages(backend, one.name, limit=_LISTED, after=after)
    declared = backend.app.outboxes.find(one.name)
    resends = declared is not None and declared.outbox.definition is not None and "insert" in declared.outbox.on
    return {
        "one": one,
        "most": _MOST_COUNTED,
        "charts": await charts_of(view, (f"outbox {one.name}", "message"), outbox=one.name),
        "advice": [text for text, _command in advice(one, page.messages)],
        "messages": page.messages,
        "entries": await view.log(_LISTED, words=[f" {one.handler} "]),
        "more": None if page.next is None else urlencode({"outbox": one.name, "after": page.next}),
        "may_rebuild": declared is not None and declared.reset is not None,
        "may_resend": resends,
    }


async def _sure_to_move(view: View) -> str:
    read_place(view.require("to"))  # refuse a wrong place before asking
    calls = view.backend.job_calls
    row = await outbox_of(calls.store, view.require("outbox"))
    (one,) = await look_at(calls.store, [row], calls.now(), view.backend.app.outboxes.find, _MOST_COUNTED)
    what = "None of these will be delivered." if view.word("to") == "end" else "Some are skipped, or delivered again."
    return f"Move {one.name}? It has {amount(one.messages, 'message')} to deliver. {what}"


async def _sure_to_resend(view: View) -> str:
    await outbox.ask_to_resend(view.backend, parameters_of(view, outbox.resend))  # refuse a wrong filter before asking
    return "Send these rows again? The handler gets each row that matches."


def _tell_of_retry(_given: Given, found: Any) -> str:
    return f"{amount(found['retried'], 'message')} will be retried."


def _tell_of_move(_given: Given, one: OutboxStatus) -> str:
    return f"{one.name} is moved, and has {amount(one.messages, 'message')} to deliver."


def _tell_of_resend(_given: Given, found: Any) -> str:
    return f"{amount(found['resent'], 'row')} will be sent again."


_PAUSE = {
    "pause": act_of(outbox.pause, "{outbox} is paused. New messages are kept."),
    "resume": act_of(outbox.resume, "{outbox} is resumed."),
}
_SKIP = "Skip this message for good? Its handler never gets it."
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
            "retry": act_of(outbox.retry, _tell_of_retry),
            "skip": act_of(outbox.skip, "Message {number} is skipped.", sure=_SKIP),
            "move": act_of(outbox.move, _tell_of_move, sure=_sure_to_move),
            "resend": act_of(outbox.resend, _tell_of_resend, sure=_sure_to_resend),
            "rebuild": act_of(outbox.rebuild, "{outbox} starts again with all rows.", sure=_REBUILD),
        },
        above="/outboxes",
    ),
)
