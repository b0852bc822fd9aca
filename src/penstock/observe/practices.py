"""Best practices that can be seen while a program runs. In development and tests only.

Owns what is told, once for each place, and the probes that stand in place of `clock.other_doors`. The rules, their
codes and their pages are those of `penstock check`.
"""

from __future__ import annotations

import asyncio
import ctypes
import dis
import inspect
import linecache
import logging
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import field
from datetime import datetime
from functools import cache
from itertools import islice
from pathlib import Path
from types import ClassMethodDescriptorType, CodeType, FrameType
from typing import Any

from penstock.clock import other_doors
from penstock.dataclass import dataclass
from penstock.errors import PracticeBroken
from penstock.observe.logs import event
from penstock.observe.places import place

MOST_COLLECTED = 1_000  # rows
MOST_READ = 100  # rows that a filter reads for each that it keeps
MOST_RUNS = 10  # calls of run_query, run_mutation and run_action in one run of an action

_MODE = re.compile(r"(?:(PEN\d{3})=)?(off|log|error)")
_IGNORED = r"#\s*penstock:\s*ignore\[[\w\s,]*\b{}\b[\w\s,]*\][\s:-]*\S"
_CALLS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX"}
_SLEEP = "time.sleep"
_CHANCE = {"random", "secrets", "uuid"}  # modules that pass chance on
_FOREIGN = (f"{sysconfig.get_path('stdlib')}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}", "<frozen")

Lines = tuple[str, int, range]  # file, the line to show, and all lines that are meant
Line = tuple[CodeType, int, int]  # code, the offset in it, and the line

_current: ContextVar[Watch | None] = ContextVar("penstock_practices", default=None)


@dataclass(slots=True)
class Finding:
    """A place that breaks a rule."""

    code: str  # the rule, such as PEN003
    function: str  # the name of the function that ran
    place: str  # file and line
    seen: str  # what happened there the first time, with its numbers
    times: int = 0  # how often it has happened


def practices_of(setting: str) -> Practices | None:
    """The practices of a process, or None if nothing is told. Of a setting the last word on each rule counts."""
    modes = {found[1] or "": found[2] for found in _MODE.finditer(setting)}
    return None if set(modes.values()) <= {"off"} else Practices(modes)


class Practices:
    """Tells of broken rules, and keeps what was found."""

    def __init__(self, modes: dict[str, str]) -> None:
        self._modes = modes  # by rule; "" for all others
        self.found: dict[tuple[str, str, int], Finding] = {}  # by rule, file and line

    def listen(self, *, on: bool) -> None:
        """Hear who asks for time and chance, or no more."""
        _doors().listen(self, on=on)

    def tell(self, code: str, function: str, where: Lines, seen: str) -> None:
        """Tell that a place breaks a rule; raise PracticeBroken if the setting says so."""
        file, line, _ = where
        mode = self._modes.get(code, self._modes[""])
        if mode == "off":
            return
        found = self.found.get((code, file, line))
        if found is None:
            if _is_ignored(code, where):
                return
            found = self.found[code, file, line] = Finding(code, function, place(file, line), seen)
            facts: dict[str, Any] = {"place": found.place, "seen": seen, "why": f"penstock check --explain {code}"}
            event("practice.broken", logging.WARNING, code=code, function=function, **facts)
        found.times += 1
        if mode == "error":
            fix = f"penstock check --explain {code} says why."
            raise PracticeBroken(f"{function} ({found.place}): {seen}.", fix=fix, rule=code, place=found.place)


@dataclass(slots=True, eq=False)
class Watch:
    """Watches one run of a function, from now until `end`."""

    practices: Practices
    name: str
    declared: Callable[..., Any]  # the function as it was written
    handler: Callable[..., Any]  # the function that is called
    transacts: bool  # whether it is a query or a mutation
    is_open: bool  # whether somebody outside calls it, and its declaration says nothing about access
    has_asked: bool = False  # who calls
    runs: int = 0  # of other functions, by an action
    last: Line | None = None  # where it ran the last one
    parent: Watch | None = field(default_factory=_current.get)

    def __post_init__(self) -> None:
        _current.set(self)

    def end(self) -> None:
        _current.set(self.parent)

    def check_asked(self) -> None:
        if self.is_open and not self.has_asked:
            self.tell("PEN006", "somebody from outside called it, and nothing asked who that is", None)

    def tell(self, code: str, seen: str, frame: FrameType | None) -> None:
        """Tell of a line, or of the function if nobody knows the line."""
        self.practices.tell(code, self.name, _head(self.declared) if frame is None else _lines(frame), seen)

    def frame(self) -> FrameType | None:
        """The line of the program that waits for penstock now: in this task, or else in a thread."""
        here = self._frame_above(sys._getframe())  # noqa: SLF001 - it has no other name
        return here or next(filter(None, map(self._frame_above, sys._current_frames().values())), None)  # noqa: SLF001

    def _frame_above(self, frame: FrameType | None) -> FrameType | None:
        own, handler = None, getattr(self.handler, "__code__", None)
        while frame is not None:
            own = own or (frame if is_own(frame.f_code.co_filename) else None)
            if frame.f_code is handler:
                return own
            frame = frame.f_back
        return None


# ----- what is seen


def note_collect(table: str, rows: int) -> None:
    if rows > MOST_COLLECTED and (run := _current.get()) is not None:
        run.tell("PEN003", f"collect read {rows:,} rows of {table}", run.frame())


def note_filter(table: str, read: int, kept: int) -> None:
    if read > MOST_READ * max(kept, 1) and (run := _current.get()) is not None:
        run.tell("PEN002", f"a filter read {read:,} rows of {table}, and kept {kept:,}", run.frame())


def note_identity() -> None:
    """Note that a function asks who calls it; so do the functions that run it."""
    run = _current.get()
    while run is not None:
        run.has_asked = True
        run = run.parent


def note_schedule(function: Any) -> None:
    if function.public and (run := _current.get()) is not None:
        run.tell("PEN008", f"{function.name} is public, and was scheduled", run.frame())


def ran(word: str, function: Any) -> None:
    """See that an action runs another function, which may be none at all."""
    run = _current.get()
    if run is None:
        return
    frame = run.frame()
    run.runs += frame is not None or not _is_in_own_task()
    if getattr(function, "public", False):
        run.tell("PEN008", f"{function.name} is public, and was called with {word}", frame)
    if word != "run_action" and frame is not None:
        last, run.last = run.last, (frame.f_code, frame.f_lasti, frame.f_lineno)
        if last is not None and last[0] is frame.f_code and _are_neighbours(*last[:2], frame.f_lasti):
            run.tell("PEN011", f"{word} follows the transaction of line {last[2]}, and rows may change between", frame)
    if run.runs > MOST_RUNS:
        run.tell(
            "PEN012", f"one run of an action made {run.runs} calls of run_query, run_mutation or run_action", frame
        )


def _is_in_own_task() -> bool:
    """Whether a helper of the program runs in a task of its own: ``asyncio.gather(*(load(ctx, one) for …))``."""
    task = asyncio.current_task()
    code = getattr(task.get_coro() if task else None, "cr_code", None)
    return code is not None and is_own(code.co_filename)


def _hear(word: str) -> None:
    """Hear that somebody asks for time or chance, as libraries may."""
    run = _current.get()
    blocks = word == _SLEEP and asyncio._get_running_loop() is not None  # noqa: SLF001 - the only way to ask quickly
    if run is None or not (blocks if word == _SLEEP else run.transacts):
        return
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - it has no other name
    while frame is not None and (module := frame.f_globals.get("__name__")) in _CHANCE:
        word, frame = f"{module}.{frame.f_code.co_name}", frame.f_back
    if frame is None or not is_own(frame.f_code.co_filename):
        return
    if blocks:
        run.tell("PEN022", f"{word} blocks the event loop: nothing else of the process goes on meanwhile", frame)
    else:
        run.tell("PEN014", f"{word} gives something else each time this runs", frame)


@cache
def _doors() -> Doors:
    return Doors(_hear)


# ----- where


@cache
def is_own(file: str) -> bool:
    """Whether a file is the program's: not Python's, not penstock's, and not installed."""
    return not file.startswith(_FOREIGN) and "site-packages" not in file and "dist-packages" not in file


@cache
def _are_neighbours(code: CodeType, begin: int, end: int) -> bool:
    """Whether code calls nothing, awaits nothing and catches nothing between two calls."""
    names = [one.opname for one in dis.get_instructions(code) if begin < one.offset <= end]
    calls = sum(name in _CALLS for name in names)
    return calls == 1 and names.count("GET_AWAITABLE") <= 1 and "PUSH_EXC_INFO" not in names


def _is_ignored(code: str, where: Lines) -> bool:
    file, _, lines = where
    return any(re.search(_IGNORED.format(code), linecache.getline(file, line)) for line in lines)


def _lines(frame: FrameType) -> Lines:
    """The lines of the call in which a frame is."""
    positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)  # an instruction has two bytes
    _, last, _, _ = next(positions)
    return frame.f_code.co_filename, frame.f_lineno, range(frame.f_lineno, (last or frame.f_lineno) + 1)


@cache
def _head(declared: Callable[..., Any]) -> Lines:
    """The head of a function: the line of its def, and all from its decorators to its body."""
    code = getattr(inspect.unwrap(declared), "__code__", None)
    if code is None:
        return "unknown file", 0, range(0)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    above = next((at for at, text in enumerate(lines) if text.lstrip().startswith(("def ", "async def "))), 0)
    line = code.co_firstlineno + above
    body = min((one for _, _, one in code.co_lines() if one and one > line), default=line)
    return code.co_filename, line, range(code.co_firstlineno, max(body, line + 1))


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
