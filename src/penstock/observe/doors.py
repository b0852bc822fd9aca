"""Hears of each time that a program asks for the time or for chance, while somebody listens. In development only.

Owns the probes that stand in place of `clock.other_doors`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from datetime import datetime
from types import ClassMethodDescriptorType
from typing import Any

from penstock.clock import other_doors


class Doors:
    """The probes of a process; `heard` is called with the word for what a program asks."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        self._listeners = set[object]()
        self._probes: list[tuple[dict[str, Any], str, Any, Any]] = []
        doors: dict[str, Any] = {}
        for word, names, name in other_doors():
            held = names.get(name)  # an instance has only a probe of its own
            self._probes.append((names, name, held, _probe(word, doors.setdefault(word, held), heard)))

    def listen(self, listener: object, *, on: bool) -> None:
        (self._listeners.add if on else self._listeners.discard)(listener)
        for names, name, held, probe in self._probes:
            old, new = (held, probe) if self._listeners else (probe, held)
            if names.get(name) is old:  # else a test has replaced it
                names[name] = new
                if new is None:
                    del names[name]
        # Python keeps what it has looked up in a class, and is to forget it.
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))


def _probe(word: str, held: Any, heard: Callable[[str], None]) -> Any:
    if isinstance(held, ClassMethodDescriptorType):

        def of_class(of: type, *args: Any, **named: Any) -> Any:
            heard(word)
            return held.__get__(None, of)(*args, **named)

        return classmethod(of_class)

    def probe(*args: Any, **named: Any) -> Any:
        heard(word)
        return held(*args, **named)

    return probe
