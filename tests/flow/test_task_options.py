"""Options of reactive tasks, outboxes and pools at the door: what they are given is refused by name, or works."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from stage.databases import sql
from stage.stories import crew

from penstock import (
    ActionCtx,
    App,
    CircuitBreaker,
    DeclarationError,
    Retry,
    Table,
    TaskBatchCtx,
    TaskCtx,
    UsageError,
    ValueInvalid,
)
from penstock.api.outbox.outboxes import OutboxOptions
from penstock.api.tasks.tasks import TaskOptions

SECOND = timedelta(seconds=1)
YEAR = timedelta(days=366)


class Crate(Table, name="crate_of_options"):
    state: str = "new"
    send_at: datetime | None = None


ABSURD: tuple[Any, ...] = (
    None, "", "x", "x" * 300, "a\0b", "\ud800", "no", b"x", -1, 0, 1, 1.5, float("nan"), float("inf"), 2**31, 10**30,
    True, (), [], {}, set(), [[]], {"a"}, (None,), ("enter", "enter"), ("enter", 1), ([],), object(), int,
    lambda row: 1, SECOND, -SECOND, timedelta(0), timedelta.max, timedelta.min, timedelta(days=9_999_999),
    datetime(2026, 1, 1, tzinfo=UTC), Crate,
)  # fmt: skip
MEANT: dict[str, tuple[Any, ...]] = {
    "on": ("enter", ["enter"], {"delete", "leave"}, ("change",)),
    "priority": (-32_000, 32_000, 32_001),
    "timeout": (YEAR, YEAR + SECOND),
    "debounce": (YEAR, YEAR + SECOND),
    "keep_for": (YEAR, YEAR + SECOND),
    "history": (100, 101),
    "batch": (10_000, 10_001),
    "run_at": ("send_at", "state"),
    "key": ("state",),
    "cleanup": ("never",),
    "on_version_change": ("reprocess_all",),
    "retry": (Retry.fixed(1),),
    "breaker": (CircuitBreaker(),),
}
ELSEWHERE = {"max_wait": "debounce", "linger": "batch", "key": "pool", "pool": "app.workpool"}
ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    ran.clear()


def declare(app: App, number: int, given: dict[str, Any]) -> None:
    """Declare a task that asks for this."""

    async def send(ctx: TaskCtx[Crate]) -> None:
        ran.append(given["name"])

    async def send_many(ctx: TaskBatchCtx[Crate]) -> None:
        ran.extend([given["name"]] * len(ctx.runs))

    handler = send if given.get("batch") is None else send_many
    handler.__qualname__ = handler.__name__ = f"send_{number}"
    app.reactive_task(Crate, **given)(handler)


def taken(option: str, value: Any) -> bool:
    """Whether a task may have an option; if not, the error names the option and the task."""
    refused = ""
    try:
        declare(App(), 0, {"name": "send", option: value})
    except DeclarationError as error:
        refused = str(error)
    named = re.search(rf"\b{option}\b", refused) and (option == "name" or re.search(r"\bsend\b", refused))
    assert named or not refused, (option, value, refused)
    return not refused


def refusals(option: str, give: Callable[[Any], Any]) -> list[str]:
    """What is said of values that an option may not have."""
    said = []
    for value in ABSURD:
        try:
            give(value)
        except (DeclarationError, ValueInvalid, UsageError) as error:
            said.append(str(error))
    assert said
    assert all(re.search(rf"\b{option}\b", one) for one in said)
    return said


def values_of(option: str) -> tuple[Any, ...]:
    return (*ABSURD, *MEANT.get(option, ()))


@pytest.mark.parametrize("option", sorted(TaskOptions.__annotations__))
def test_an_option_of_a_task_is_taken_or_refused_by_name(option: str) -> None:
    allowed = [value for value in values_of(option) if taken(option, value)]
    assert len(allowed) < len(values_of(option))
    assert [one for one in allowed if one is not None] or option in ELSEWHERE


def test_db4_db5_cl15_ev6_wp6_what_would_fail_later_is_refused() -> None:
    times = (None, -SECOND, YEAR + SECOND, 500, "1s", "soon")
    refused: dict[str, tuple[Any, ...]] = {
        "priority": (2**31, "x", 1.5, 32_001),
        "timeout": (timedelta(days=9_999_999),),
        "debounce": times,
        "keep_for": times,
        "cleanup": ("sometimes",),
        "version": (-1, 1.5, "2", None, True, 2**31),
        "on_version_change": ("reprocess_some",),
        "watch": (("-state",), ({"state": 0},), {"state": 0}, ("nothing",), ()),
        "on": (None, (), ("enter", "enter"), ("insert",)),
        "pool": ("x",),
        "name": ("", "x" * 101, "a\nb", 7),
        "history": (-1, 101, True),
        "run_at": ("no_such", "state"),
        "max_wait": (SECOND,),
        "reset_retries_on_data_change": ("no",),
        "reconcile_on_trigger_change": (1,),
        "batch": (True,),
        "linger": (None,),
        "retry": (False,),
        "key": (["state"], "no_such"),
    }
    for option, values in refused.items():
        for value in values:
            assert not taken(option, value), (option, value)


async def test_what_is_taken_runs(database_url: str) -> None:
    """No option that is let in keeps the app from being opened, or its task from being planned and run."""
    app, names = App(), set[str]()
    for option in sorted(TaskOptions.__annotations__):
        for number, value in enumerate(values_of(option)):
            if option not in {"name", "on", "run_at", "debounce"} and taken(option, value):
                names.add(name := f"{option} {number}")
                declare(app, len(names), {"name": name, option: value})
    assert len(names) > 25
    async with crew(app, database_url) as one:
        row = "('crate_of_options_00000000000000000000000001', '2026-01-01T00:00:00.000000Z', 'new')"
        await sql(one.backend, f"insert into crate_of_options (id, creation_time, state) values {row}")
        await one.settle_down()
        assert set(ran) == names
        assert await app.tasks.count(one.backend) == {"success": len(names)}


@pytest.mark.parametrize("option", sorted(OutboxOptions.__annotations__))
def test_an_option_of_an_outbox_is_taken_or_refused_by_name(option: str) -> None:
    async def send(ctx: ActionCtx, row: Crate) -> None: ...

    said = refusals(option, lambda value: App().outbox(Crate, **{"name": "send", option: value})(send))
    assert all("Outbox" in one for one in said)


@pytest.mark.parametrize("option", ["max_parallelism", "default_retry", "retry_actions_by_default", "status_ttl",
                                    "ageing", "key_parallelism", "rate_limit", "group", "log_level"])  # fmt: skip
def test_an_option_of_a_pool_is_taken_or_refused_by_name(option: str) -> None:
    refusals(option, lambda value: App().workpool("pool", **{option: value}))


@pytest.mark.parametrize("option", ["priority", "timeout", "max_wait", "retry", "name", "key", "concurrency_key"])
def test_an_option_of_work_is_taken_or_refused_by_name(option: str) -> None:
    pool = App().workpool("pool")
    more: dict[str, Any] = {"key": "k", "debounce": SECOND} if option == "max_wait" else {}
    refusals(option, lambda value: pool.with_options(**{**more, option: value}))
