"""The checker imports nothing of penstock: the calls that it expects to be awaited are those of the real classes."""

from __future__ import annotations

import inspect

import penstock
from penstock import Backend, Workpool
from penstock.calls.enqueue.jobreader import JobReader
from penstock.calls.enqueue.messages import Sender
from penstock.calls.enqueue.scheduler import Scheduler
from penstock.calls.handlers.taskctx import TaskBatchRun
from penstock.calls.run.auth import Auth
from penstock.calls.run.work import ActionWork
from penstock.check import program, values, words
from penstock.testing import TestApp
from penstock.transaction.database import DatabaseWriter
from penstock.transaction.scan import Scan

WORDS = {
    "db": DatabaseWriter,
    "jobs": JobReader,
    "scheduler": Scheduler,
    "outbox": Sender,
    "auth": Auth,
    "work": ActionWork,
}
NOT_AWAITED = {"with_options", "within", "job"}  # of a pool


def awaited(kind: type) -> set[str]:
    """The public methods that return something to await."""
    return {
        name
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and _is_awaited(inspect.unwrap(method))
    }


def _is_awaited(method: object) -> bool:
    result = inspect.signature(method).return_annotation  # type: ignore[arg-type]
    return inspect.iscoroutinefunction(method) or str(result).startswith("Coroutine")


def test_the_checker_knows_each_call_that_is_awaited() -> None:
    kinds = [TaskBatchRun if name == "TaskBatchRun" else getattr(penstock, name) for name in program._CTX]
    assert set().union(*map(awaited, kinds)) == words.CTX_CALLS
    assert {word: awaited(kind) for word, kind in WORDS.items()} == words.AWAITED
    assert awaited(Scan) == words.ENDS
    assert awaited(TestApp) | awaited(Backend) == words.OF_BACKENDS
    assert {name for name in dir(Workpool) if not name.startswith("_")} - NOT_AWAITED == words.POOL
    names = {name for kind in kinds for name in (*dir(kind), *inspect.get_annotations(kind))}
    assert names >= values.WORDS >= words.AWAITED.keys()
