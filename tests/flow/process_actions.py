"""Actions that run in processes of their own; a module apart, as each process imports it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from penstock import App, ApplicationError, NonRetryableError, Snooze
from penstock.sync import ActionCtx

app = App()


class Sums(BaseModel):
    """What an action computes."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    total: Decimal
    at: datetime
    seal: bytes = b""


class SoldOut(ApplicationError):
    """An error that the program has derived."""


class Evil(Exception):
    """An exception that would run code of its own where it is unpickled."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)


class NeedsTwo(Exception):
    """An exception that cannot be made from its text."""

    def __init__(self, first: str, second: object) -> None:
        super().__init__(f"{first} and {second}")
        self.second = second


@app.action(runtime="process")
def add(ctx: ActionCtx, numbers: list[Decimal], at: datetime) -> Sums:
    """Sum up, in another process."""
    assert ctx.now().tzinfo is UTC
    assert 0 <= ctx.random.random() < 1
    return Sums(total=sum(numbers, Decimal(0)), at=at, seal=b"\xff")


@app.internal_action(runtime="process")
def process_id(_ctx: ActionCtx) -> int:
    """Tell which process runs this."""
    return os.getpid()


@app.internal_action(runtime="process")
def wrong_result(_ctx: ActionCtx) -> int:
    """Break its promise."""
    return "x"  # type: ignore[return-value]  # what is tested


@app.internal_action(runtime="process")
def fail(_ctx: ActionCtx, how: str) -> None:
    """Fail in one of many ways."""
    if how == "die":
        os._exit(1)
    make: dict[str, Any] = {
        "application": lambda: ApplicationError({"seats": 0}),
        "final": lambda: NonRetryableError("no use", fix="Do not.", tries=3),
        "value": lambda: ValueError("wrong"),
        "key": lambda: KeyError("what"),
        "evil": Evil,
        "own": lambda: SoldOut({"seats": 0}),
        "stop": lambda: SystemExit(3),
        "two": lambda: NeedsTwo("one", object()),
        "pydantic": lambda: Sums.model_validate({"total": "x"}),
    }
    error: BaseException = make[how]()
    raise error


@app.action(runtime="process")
def hang(_ctx: ActionCtx, begun: str) -> None:
    """Never end; tell of having begun in a file."""
    Path(begun).write_text(str(os.getpid()), "ascii")
    while True:
        pass


@app.internal_action(runtime="process")
def reach_out(ctx: ActionCtx, what: str) -> None:
    """Use what a process does not have."""
    getattr(ctx, what)


crunch = app.workpool("crunch")


@app.internal_action(runtime="process")
def tell_work(ctx: ActionCtx) -> tuple[str, int, str]:
    """Tell what is known of the attempt at the job."""
    assert ctx.is_job
    return ctx.work.id, ctx.work.attempt, f"{ctx.work.deadline:%Y-%m-%dT%H:%M:%S+00:00}"


@app.internal_action(runtime="process")
def say_progress(ctx: ActionCtx) -> None:
    """Say what cannot be said from here."""
    ctx.work.progress(1)


@app.internal_action(runtime="process")
def snooze(_ctx: ActionCtx) -> None:
    """Ask to run later."""
    raise Snooze(timedelta(minutes=2), reason="not yet")
