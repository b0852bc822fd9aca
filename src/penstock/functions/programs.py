"""Programs on one database, told apart by the names of their apps: what clashes, and whose functions are whose.

Leaves the rows to `store.nouns.programs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from penstock.dataclass import dataclass
from penstock.errors import DeclarationError, ProgramClash
from penstock.functions.function import AnyFunction
from penstock.functions.registry import Registry

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
_ALONE = {"cron", "task", "outbox"}  # of one program only
_ALIKE = {"pool", "pool group", "rate limit"}  # shared by programs that declare them alike


@dataclass(frozen=True, slots=True)
class Declaration:
    noun: str
    name: str
    spec: str  # equal for what is declared alike
    program: str  # '' for all programs without a name


def check_name(what: str, name: object) -> None:
    """Refuse a name that no app, pool or rate limit can have."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        fix = "Use letters, digits, dot, dash and underscore, at most 63, a letter first."
        raise DeclarationError(f"{what} cannot be called {name!r}.", fix=fix)


def clashes(ours: Sequence[Declaration], stored: Sequence[Declaration]) -> Iterator[tuple[Declaration, Declaration]]:
    """The declarations of a program that cannot hold together with stored ones, each with that.

    Programs without a name may be releases of one, so all that counts is whether the declaration is another one.
    """
    mine = {(one.noun, one.name): one for one in ours if one.noun in _ALONE | _ALIKE}
    for other in stored:
        if one := mine.get((other.noun, other.name)):
            named = bool(one.program and other.program)
            is_own = named and one.program == other.program
            if not is_own and (one.spec != other.spec or (named and one.noun in _ALONE)):
                yield one, other


def refuse_clashes(ours: Sequence[Declaration], stored: Sequence[Declaration]) -> None:
    """Raise `ProgramClash` if another program with a name declares something that this one may not."""
    if found := [pair for pair in clashes(ours, stored) if all(one.program for one in pair)]:
        listed = ", ".join(
            f"{one.noun} {one.name!r} is declared {'otherwise ' * (one.noun in _ALIKE)}by program {other.program!r}"
            for one, other in found
        )
        raise ProgramClash(
            f"Program {found[0][0].program!r} cannot start on this database: {listed}.",
            fix="Rename it in one of them, or declare pools and rate limits alike. After a rename of a program: "
            f"penstock forget {found[0][1].program}",
            clashes=[{"noun": other.noun, "name": other.name, "program": other.program} for _, other in found],
        )


class Known:
    """The functions that one program runs, and the ones that it leaves to other programs on its database."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._others: set[tuple[str, str]] = set()  # functions that other programs with names declare, and these
        self._unknown: dict[str, float] = {}  # functions that no program is known to have, and until when they are left

    def learn(self, stored: Sequence[Declaration]) -> None:
        """Learn what the programs on the database declare now."""
        own = {"", self._registry.program}
        self._others = {(one.name, one.program) for one in stored if one.noun == "function" and one.program not in own}

    def find(self, function: str, program: str | None) -> AnyFunction | None:
        """The function of a job that a program enqueued; None if another program has it, or nobody."""
        return None if (function, program) in self._others else self._registry.find(function)

    def is_new(self, function: str, program: str | None) -> bool:
        """Whether such a job says that a program has declared something since."""
        return program not in {None, self._registry.program} or self._registry.find(function) is None

    def leave(self, function: str, until: float) -> bool:
        """Leave the jobs of a function to other workers until a time, unless this program has it as well."""
        self._unknown |= {} if self._registry.find(function) else {function: until}
        return function in self._unknown

    def exclusions(self, now: float, held: Iterable[str] = ()) -> Mapping[str, object]:
        """Functions left to other workers now, as parameters of queries; `held` are functions that do not run here."""
        self._unknown = {name: until for name, until in self._unknown.items() if until > now}
        names = {name for name, _program in self._others}
        shared = {name for name in names if self._registry.find(name)}.difference(held := set(held))
        others, programs = [*(names - shared | held), *self._unknown], {program for _name, program in self._others}
        return {"others": others, "shared": [*shared], "programs": [*programs]}
