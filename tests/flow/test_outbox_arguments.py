"""What outboxes are declared and looked after with: sets mean the same everywhere, and what cannot be is refused."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from stage.outboxes import OutboxStage, drain, failing, states

from penstock import DeclarationError, NonRetryableError, OutboxNotFound, Table, TaskFilter, ValueInvalid
from penstock.store.sqlite.dialect import SQLITE

NAMES = ("note", *(f"c{number}" for number in range(9)))


class Wide(Table):
    note: str = ""
    c0: int = 0
    c1: int = 0
    c2: int = 0
    c3: int = 0
    c4: int = 0
    c5: int = 0
    c6: int = 0
    c7: int = 0
    c8: int = 0


def declared(**options: Any) -> tuple[str, str]:
    stage = OutboxStage(Wide)
    stage.outbox(Wide, **options)
    (one,) = stage.app.outboxes
    return one.outbox.spec(), one.interest(SQLITE).digest


def test_sets_are_declared_alike_in_each_process_and_what_is_none_is_left_out() -> None:
    events = ("delete", "insert", "truncate", "update")
    for several in (set, frozenset):
        assert declared(fields=several(NAMES)) == declared(fields=tuple(sorted(NAMES)))
        assert declared(on=several(events)) == declared(on=events)
    none: dict[str, Any] = dict.fromkeys(("fields", "partition_by", "order_by"))
    assert declared(**none) == declared()
    stage = OutboxStage(Wide)
    stage.outbox("news", **none)
    (one,) = stage.app.outboxes
    assert one.outbox.topic == "news"


def test_what_cannot_be_declared_is_refused() -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (Wide, {"order_by": {"c0", "c1"}}, "order_by is a tuple of fields, not a set"),
        (Wide, {"order_by": frozenset({"c0"})}, "order_by is a tuple of fields, not a frozenset"),
        (Wide, {"fields": {1, "note"}}, "has no field"),
        (Wide, {"fields": {None}}, "has no field"),
        ("news", {"on": None}, "are for tables"),
        ("news", {"fields": ()}, "are for tables"),
        ("news", {"order_by": "note"}, "are for tables"),
        ("news", {"partition_by": "note"}, "are for tables"),
    ]
    for source, options, says in cases:
        with pytest.raises(DeclarationError, match=says):
            OutboxStage(Wide).outbox(source, **options)


REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    *[("skip", (1, reason), {}, "Skipping a message needs a reason") for reason in (None, 5, b"why", "", " \n")],
    *[("retry", (numbers,), {}, "numbers takes a list") for numbers in (5, "5", 0, object())],
    *[
        ("messages", (), {"states": given}, "states takes some of")
        for given in (None, 5, "parked", ["nowhere"], [["parked"]])
    ],
    *[("move", (to,), {}, "move takes 'beginning', 'end', a time or a position") for to in (None, 5, b"end")],
    *[
        ("move", (datetime.fromisoformat(time),), {}, "no time in UTC")
        for time in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00")
    ],
    *[("retry", ([1, number],), {}, "64 bits") for number in (2**63, -(2**63) - 1, 10**30, True, 1.0, "1", None)],
    *[("skip", (number, "a test"), {}, "64 bits") for number in (2**63, True, 1.0, "1", None)],
    *[("messages", (), {"after": number}, "64 bits") for number in (2**63, True, 1.0, "1")],
]


async def test_what_cannot_be_looked_after_is_refused(sqlite_url: str) -> None:
    stage = OutboxStage(Wide)
    stage.outbox(Wide, on_failure="park")
    stage.fails = failing(lambda: NonRetryableError("no"), "a", "b")
    async with stage.open(sqlite_url) as test:
        outboxes: Any = stage.app.outboxes
        for verb, args, options, says in REFUSED:
            with pytest.raises(ValueInvalid, match=says):
                await getattr(outboxes, verb)(test, "send", *args, **options)
        for name in (None, 5, ["send"]):
            for verb in ("messages", "retry", "pause", "resume", "rebuild", "drop"):
                with pytest.raises(OutboxNotFound, match="knows no outbox"):
                    await getattr(outboxes, verb)(test, name)
        for where in (None, "task", {}):
            for verb in ("records", "count", "retry", "cancel", "skip", "delete"):
                with pytest.raises(ValueInvalid, match="are picked by a TaskFilter"):
                    await getattr(stage.app.tasks, verb)(test, where)
        assert await stage.app.tasks.count(test, TaskFilter()) == {}

        await stage.insert(test, Wide(note="a"), Wide(note="b"))
        await drain(test)
        (one, other) = (await outboxes.messages(test, "send")).messages
        assert await outboxes.retry(test, "send", iter([one.number])) == 1, "from anything that has several"
        assert await states(test) == ["waiting", "parked"]
        assert await outboxes.retry(test, "send", {other.number}) == 1
