"""The calls that one run of a function makes on its ctx: none of them left un-awaited, none made after its end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar, cast

from penstock.errors import ContextError, UnawaitedCall
from penstock.functions.component import Component

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])

_PRUNE_AT = 512
_ROOMS = {
    "DatabaseWriter": "db.",
    "DatabaseReader": "db.",
    "Scan": "db.query(…).",
    "Search": "db.query(…).with_search_index(…).",
    "Groups": "db.query(…).group_by(…).",
    "Scheduler": "scheduler.",
    "Sender": "outbox.",
    "ActionWork": "work.",
    "Auth": "auth.",
    "SigningAuth": "auth.",
    "StorageReader": "storage.",
    "StorageWriter": "storage.",
    "Storage": "storage.",
}


class Calls:
    __slots__ = ("__weakref__", "_calls", "component", "dropped", "ended", "function")

    def __init__(self, function: str, component: Component | None = None) -> None:
        self.function = function  # the name of the function that runs
        self.component = component  # the one whose function that is
        self.ended = False  # whether the run has ended
        self.dropped: tuple[str, ...] = ()  # names of helpers that got its ctx and were dropped before they began
        self._calls: list[Coroutine[Any, Any, Any]] = []

    def track(self, call: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Remember a call, so that it is noticed if nobody awaits it."""
        if self.ended:
            call.close()
            raise ContextError(f"{self.function} has ended; its ctx can no longer be used.")
        if len(self._calls) >= _PRUNE_AT:
            self._calls = [known for known in self._calls if _is_unfinished(known)]
        self._calls.append(call)
        return call

    def end(self) -> None:
        """End the run; UnawaitedCall if calls were not awaited."""
        self.ended = True
        left = self.abandon() if self._calls else ()
        if left or self.dropped:
            raise not_awaited(self.function, [*map(_name, left), *self.dropped], "Write await before them.")

    def abandon(self) -> Sequence[Coroutine[Any, Any, Any]]:
        """End a run; the calls it left. Calls that nobody has begun are closed, others are left to their tasks."""
        self.ended = True
        left = [call for call in self._calls if _is_unfinished(call)]
        self._calls = []
        for call in left:
            if not getattr(call, "cr_running", False) and getattr(call, "cr_await", None) is None:
                call.close()
        return left


class OfCall:
    """The ctx of one run of a function, or its ``db``: a task that holds one must not outlive the run."""

    __slots__ = ()
    _calls: Calls


def track_calls(method: F) -> F:
    """Remember each call of a method, with the `_calls` of its object."""

    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._calls.track(method(self, *args, **kwargs))

    return cast("F", call)


def not_awaited(function: str, calls: Iterable[str], fix: str) -> UnawaitedCall:
    names = ", ".join(sorted(set(calls)))
    return UnawaitedCall(
        f"{function} ended, but these calls were not awaited: {names}.", fix=fix, calls=names, function=function
    )


def _is_unfinished(call: Coroutine[Any, Any, Any]) -> bool:
    return getattr(call, "cr_frame", None) is not None


def _name(call: Coroutine[Any, Any, Any]) -> str:
    """The public name of a call, such as ``ctx.db.patch``."""
    owner, _, name = str(getattr(call, "__qualname__", "call")).rpartition(".")
    return f"ctx.{_ROOMS.get(owner, '')}{name.lstrip('_')}"
