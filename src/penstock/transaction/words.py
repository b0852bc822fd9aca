"""Hints for names that a ctx does not have: those of another ctx, or of Convex."""

from __future__ import annotations

from typing import Any, TypeVar

from penstock.errors import ContextError

T = TypeVar("T")

_MUTATION = "Do it in a mutation: @app.mutation, and ctx: MutationCtx."
_ACTION = "Do it in an action: @app.action, and ctx: ActionCtx."
_OWN = "Read with ctx.run_query(function, …), and write with ctx.run_mutation(function, …)."
_SCHEDULE = "A mutation may run again. Write ctx.scheduler.run_after(timedelta(0), function, …)."
_LOCK = (
    "A transaction takes no locks: it is isolated already, and waiting in it would block others. Take the lock in the "
    "action or the program that calls it, and use ctx.check_fence here."
)
_IN_STEP = "Do it in an action, and call that with ctx.run_action(function, …)."
_READS = ("get", "query")
_WRITES = ("insert", "insert_many", "patch", "replace", "delete")

_FIXES: dict[str, dict[str, str]] = {
    "QueryCtx": {
        **dict.fromkeys(("run_mutation", "scheduler", "outbox", "rate_limit", "check_fence", *_WRITES), _MUTATION),
        **dict.fromkeys(("run_action", "cancelled", "wait_cancelled"), _ACTION),
        **{word: f"Write ctx.db.{word}(…)." for word in _READS},
        "with_lock": _LOCK,
    },
    "MutationCtx": {
        **{word: f"Write ctx.db.{word}(…)." for word in (*_READS, *_WRITES)},
        "run_action": _SCHEDULE,
        "with_lock": _LOCK,
    },
    "ActionCtx": {**dict.fromkeys(("db", "jobs", "sql", *_READS, *_WRITES), _OWN), "check_fence": _MUTATION},
    "WorkflowCtx": {
        **dict.fromkeys(("db", "jobs", "sql", "auth", "storage", *_READS, *_WRITES), _OWN),
        **dict.fromkeys(
            ("scheduler", "outbox"), "Do it in a mutation, and call that with ctx.run_mutation(function, …)."
        ),
        **dict.fromkeys(("work", "cancelled", "with_lock", "rate_limit"), _IN_STEP),
    },
    "DatabaseReader": dict.fromkeys(_WRITES, _MUTATION),
}


class NotInThisCtx(ContextError, AttributeError):
    """A ctx does not have a word; an AttributeError too, so that `hasattr` goes on working."""


class _Elsewhere:
    __slots__ = ("_fix", "_word")

    def __init__(self, word: str, fix: str) -> None:
        self._word = word
        self._fix = fix

    def __get__(self, owner: object, kind: type[Any]) -> Any:
        raise NotInThisCtx(f"{kind.__name__} has no {self._word}.", fix=self._fix)


def refuses_other_words(kind: type[T]) -> type[T]:
    """Let a class say what to write instead of words that it does not have."""
    # Attributes of the class, as `__getattr__` would make every access to an instance several times slower.
    fixes = _FIXES.get(kind.__name__.removeprefix("Sync"), {})
    own = {word: f"Write {word}." for word in vars(kind) if not word.startswith("_") and word not in fixes}
    for word, fix in (fixes | {_camel(word): fix for word, fix in (fixes | own).items()}).items():
        if word not in vars(kind):
            setattr(kind, word, _Elsewhere(word, fix))
    return kind


def _camel(word: str) -> str:
    first, *others = word.split("_")
    return first + "".join(map(str.title, others))
