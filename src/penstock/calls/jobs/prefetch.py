"""Reads ahead for jobs that share a transaction: one statement for the rows that many of them will ask for.

Owns what is known of a function's reads: the parameters of a read are often arguments of the job, as in jobs before. A
wrong guess costs a few rows that nobody needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import or_
from typing import Any

from penstock.dataclass import dataclass
from penstock.functions.function import AnyFunction
from penstock.store.session import Statement
from penstock.transaction.shared import Ahead, Shared

_KINDS = {str: "text", int: "bigint", bool: "boolean"}  # types whose values databases compare as Python does
_PLACE = re.compile(r"\$(\d+)")
_LEAST = 2  # reads; one alone is as quick without
_MOST_ROWS = 8  # of one read
_MOST_WRONG = 8  # guesses about a function; then it is left alone


@dataclass(slots=True)
class _Guess:
    """That a function reads a range whose parameters are arguments of its job, or stay the same."""

    statement: Statement
    args: tuple[Any, ...]  # of the last read, without the number of rows
    limit: int
    names: list[set[str]]  # the arguments that each parameter may be
    stays: list[bool]  # whether it may be one that stays the same
    right: int = 0
    unused: int = 0

    def args_for(self, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        pairs = zip(self.names, self.args, strict=True)
        return tuple([arguments.get(min(names)) if names else value for names, value in pairs])

    def learn(self, args: tuple[Any, ...], arguments: Mapping[str, Any]) -> bool:
        """Learn from a further read; whether it can still be right."""
        self.right += self.args_for(arguments) == args
        for place, value in enumerate(args):
            self.names[place] &= _names_of(value, arguments)
            self.stays[place] &= value == self.args[place]
        self.args = args
        return all(map(or_, map(bool, self.names), self.stays))


class Prefetch:
    """Learns the reads of functions, and makes those of waiting jobs ahead."""

    def __init__(self) -> None:
        self._guesses: dict[str, dict[str, _Guess]] = {}
        self._wrong: dict[str, int] = {}
        self._batches: dict[tuple[str, tuple[str, ...]], Statement] = {}

    def note(self, function: AnyFunction, arguments: Mapping[str, Any], reads: Iterable[tuple[Statement, Any]]) -> None:
        """Note the reads of a job that has run."""
        if self._wrong.get(function.name, 0) > _MOST_WRONG:
            return
        guesses = self._guesses.setdefault(function.name, {})
        seen = set[str]()
        for statement, (*given, limit) in reads:
            args = tuple(given)
            seen.add(statement.sql)
            guess = guesses.get(statement.sql)
            if guess is None:
                names = [_names_of(value, arguments) for value in args]
                if any(names) and statement.of is not None and statement.of.managed:
                    stays = [True] * len(names)
                    guesses[statement.sql] = _Guess(statement, args, min(limit, _MOST_ROWS), names, stays)
            elif not guess.learn(args, arguments):
                del guesses[statement.sql]
                self._wrong[function.name] = self._wrong.get(function.name, 0) + 1
        for sql, guess in list(guesses.items()):
            if sql not in seen:
                guess.unused += 1
                if guess.unused > guess.right:
                    del guesses[sql]

    async def read(self, shared: Shared, jobs: Iterable[tuple[AnyFunction, Mapping[str, Any]]]) -> None:
        """Read what jobs will likely ask for."""
        wanted: dict[tuple[str, tuple[str, ...]], dict[tuple[Any, ...], _Guess]] = {}
        for function, arguments in jobs:
            for guess in self._guesses.get(function.name, {}).values():
                given = guess.args_for(arguments)
                kinds = tuple(_KINDS.get(type(value), "") for value in given)
                if guess.right and all(kinds):
                    wanted.setdefault((guess.statement.sql, kinds), {})[given] = guess
        for which, found in wanted.items():
            if len(found) >= _LEAST:
                await self._read(shared, which, list(found), next(iter(found.values())))

    async def _read(
        self, shared: Shared, which: tuple[str, tuple[str, ...]], given: Sequence[tuple[Any, ...]], guess: _Guess
    ) -> None:
        batch, sql = self._batches.get(which), guess.statement.sql
        if batch is None:
            batch = self._batches[which] = replace(guess.statement, sql=_for_many(*which), bounded=False)
        ahead: Ahead = {(sql, args): (guess.limit, []) for args in given}
        lists = [list(values) for values in zip(*given, strict=True)]
        rows = await shared.surely(shared.session.fetch(batch, [*lists, guess.limit]))
        for *row, number, _place in sorted(rows, key=lambda row: (row[-2], row[-1])):
            ahead[sql, given[number - 1]][1].append(tuple(row))
        shared.ahead.update(ahead)


def _names_of(value: Any, arguments: Mapping[str, Any]) -> set[str]:
    """The arguments that are equal to a parameter."""
    if type(value) not in _KINDS:
        return set()
    return {name for name, given in arguments.items() if type(given) is type(value) and given == value}


def _for_many(sql: str, kinds: Sequence[str]) -> str:
    """A statement for many lists of parameters and one limit; the numbers of list and row come last in its rows."""
    lists = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(kinds, 1))
    names = ", ".join(f"v{number}" for number in range(1, len(kinds) + 1))
    limit = len(kinds) + 1
    one = _PLACE.sub(lambda found: f"${limit}" if int(found[1]) == limit else f"given.v{found[1]}", sql)
    given = f"unnest({lists}) with ordinality as given ({names}, n)"
    return f"select found.*, given.n, row_number() over () from {given}, lateral ({one}) as found"  # noqa: S608 - of penstock's making
