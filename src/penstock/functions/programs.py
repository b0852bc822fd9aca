"""The declarations of several programs on one database: which of them clash.

Programs are told apart by the names of their apps. Leaves the rows to `store.nouns.programs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import DeclarationError, ProgramClash
from penstock.functions.function import AnyFunction
from penstock.functions.registry import Registry

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
_ALONE = {"cron", "task", "outbox"}  # declared by one program only
_ALIKE = {"pool", "rate limit"}  # shared by programs that declare them alike; functions may differ


@dataclass(frozen=True, slots=True)
class Declaration:
    noun: str
    name: str
    spec: str  # equal for what is declared alike
    program: str  # '' for all programs without a name


def check_program(name: object) -> None:
    """Refuse a name of an app that cannot be; an empty one stands for none."""
    if not isinstance(name, str) or (name and not _NAME.fullmatch(name)):
        raise DeclarationError(
            f"An app cannot be called {name!r}.",
            fix="Use letters, digits, dot, dash and underscore, at most 63, a letter first.",
        )


def clashes(ours: Sequence[Declaration], stored: Sequence[Declaration]) -> Iterator[tuple[Declaration, Declaration]]:
    """The pairs of declarations, one of this program and a stored one, that cannot both hold.

    Of two programs with names only one may declare a cron, a task or an outbox. Two programs without a name may be
    releases of one, so that all that counts is whether the declaration is another one.
    """
    known = dict[tuple[str, str], list[Declaration]]()
    for one in stored:
        known.setdefault((one.noun, one.name), []).append(one)
    for one in ours:
        for other in known.get((one.noun, one.name), ()) if one.noun in _ALONE | _ALIKE else ():
            named = bool(one.program and other.program)
            is_another = one.spec != other.spec or (named and one.noun in _ALONE)
            if is_another and not (named and one.program == other.program):
                yield one, other


def refuse_clashes(ours: Sequence[Declaration], stored: Sequence[Declaration]) -> None:
    """Raise `ProgramClash` if another program with a name declares something of a name otherwise."""
    found = [(one, other) for one, other in clashes(ours, stored) if one.program and other.program]
    if found:
        listed = ", ".join(
            f"{one.noun} {one.name!r} is declared {'otherwise ' * (one.noun in _ALIKE)}by program {other.program!r}"
            for one, other in found
        )
        others = "".join(f" --forget {name}" for name in sorted({other.program for _, other in found}))
        raise ProgramClash(
            f"Program {found[0][0].program!r} cannot start on this database: {listed}.",
            fix="Rename it in one of them; pools and rate limits may also be declared alike. If a program was renamed, "
            f"or has it no more, run: penstock migrate{others}",
            clashes=[{"noun": one.noun, "name": one.name, "program": other.program} for one, other in found],
        )


class Known:
    """The functions that one program runs, and those that it leaves to other programs on its database."""

    def __init__(self, registry: Registry, program: str) -> None:
        self.program = program
        self._registry = registry
        self._others: set[tuple[str, str]] = set()  # functions that other programs with names declare, and these
        self._own: set[str] = set()  # functions that any release of this program declares
        self._unknown: dict[str, float] = {}  # functions that nobody is known to have, and until when they are left

    def learn(self, stored: Sequence[Declaration]) -> None:
        """Learn what the programs on the database declare now."""
        functions = [(one.name, one.program) for one in stored if one.noun == "function"]
        self._own = {name for name, program in functions if program == self.program}
        self._others = {(name, program) for name, program in functions if program not in {"", self.program}}

    def find(self, function: str, program: str | None) -> AnyFunction | None:
        """The function of a job that a program enqueued; None if another program has it, or nobody."""
        return None if (function, program) in self._others else self._registry.find(function)

    def is_new(self, function: str, program: str | None) -> bool:
        """Whether such a job says that programs have declared something since."""
        return program not in {None, self.program} or self._registry.find(function) is None

    def leave(self, function: str, until: float) -> None:
        """Leave the jobs of an unknown function to other workers until a time."""
        if self._registry.find(function) is None:
            self._unknown[function] = until

    def left(self, now: float) -> Mapping[str, object]:
        """What a worker leaves to others now, as parameters of queries."""
        self._unknown = {name: until for name, until in self._unknown.items() if until > now}
        names = {name for name, _program in self._others}
        shared = [name for name in names if self._registry.find(name) is not None]
        others = [*names.difference(shared, self._own), *self._unknown]
        return {"others": others, "shared": shared, "program": self.program}
