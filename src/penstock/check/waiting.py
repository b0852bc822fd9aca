"""Which calls in a function wait to be awaited, and under which names.

Owns who has taken each of them: what is kept under a name, on any way through the function, and never taken floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.check.values import Pending

Kept = dict[str, tuple[Pending, ...]]  # by their names; several, where branches meet


class Waiting:
    """The calls of one function."""

    def __init__(self) -> None:
        self.floating: list[Pending] = []  # calls that nobody awaits
        self.used: set[str] = set()  # names that something took
        self._kept: Kept = {}

    def drop(self, call: object) -> None:
        """Note that nobody awaits a call."""
        while isinstance(call, Pending):
            self.floating.append(call)
            call = call.other

    def keep(self, name: str, call: object) -> None:
        """Keep a call under a name, or something else; what was kept there before is dropped."""
        for one in self._kept.pop(name, ()):
            self.drop(one)
        if isinstance(call, Pending):
            call.names += (name,)
            self._kept[name] = (call,)

    def look(self, name: str) -> None:
        """Look at what a name keeps, which awaits no call; but tasks have methods, and lists have calls."""
        if any(one.is_many or one.is_task for one in self._kept.get(name, ())):
            self.take(name)

    def take(self, name: str) -> None:
        """Await or hand on what a name keeps."""
        self.used.add(name)
        for one in self._kept.get(name, ()):
            self.mark_awaited(one)

    def mark_awaited(self, call: Pending) -> None:
        """Await a call, whatever names it has."""
        self._kept = {name: tuple(one for one in kept if one is not call) for name, kept in self._kept.items()}

    @contextmanager
    def inner(self, own: set[str]) -> Iterator[None]:
        """A function or comprehension within: what it keeps under names of its own is dropped at its end."""
        outer = {name: self._kept.pop(name) for name in own & self._kept.keys()}
        names = {*self._kept}
        yield
        for name in self._kept.keys() - names:
            self.keep(name, None)
        self._kept |= outer

    @contextmanager
    def branch(self, ends: list[Kept]) -> Iterator[None]:
        """One way of several through a function, which starts where they part."""
        before, self._kept = self._kept, {**self._kept}
        yield
        ends.append(self._kept)
        self._kept = before

    def meet(self, ends: list[Kept]) -> None:
        """Where the ways meet: a call that was there before is left if none of them took it."""
        before, self._kept = self._kept, {}
        for name in dict.fromkeys(name for end in ends for name in end):
            those = dict.fromkeys(one for end in ends for one in end.get(name, ()))
            old = before.get(name, ())
            left = (one for one in those if one not in old or all(one in end.get(name, ()) for end in ends))
            self._kept[name] = tuple(left)

    def end(self) -> None:
        """Note that nobody awaits what was kept under a name and never looked at again."""
        for name in [*self._kept]:
            self.keep(name, None)
