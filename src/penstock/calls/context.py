"""What a function receives as its first argument: all it may do, and nothing else.

Owns the three kinds of ctx for functions written with async def; `sync` has their twins for def.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from penstock.calls.scheduler import Scheduler
from penstock.clock import Random
from penstock.errors import DataError, LimitExceeded, UnawaitedCall
from penstock.functions.function import ActionFunction, MutationFunction, QueryFunction
from penstock.transaction.database import DatabaseReader, DatabaseWriter
from penstock.transaction.transaction import Scope, call_name, close_calls, is_unfinished

if TYPE_CHECKING:
    from penstock.calls.run import Runner

P = ParamSpec("P")
R = TypeVar("R")

_NAMED = re.compile(r"(?<![:\w]):([A-Za-z_]\w*)")


class QueryCtx:
    """The ctx of a query: one snapshot to read.

    Attributes:
        db: Typed tables.
    """

    db: DatabaseReader

    def __init__(self, runner: Runner, scope: Scope, depth: int) -> None:
        self._runner = runner
        self._scope = scope
        self._depth = depth
        self.db = DatabaseReader(scope)

    def now(self) -> datetime:
        """The time of this execution, aware, in UTC: the same throughout, and in a retry."""
        return self._scope.transaction.now

    @property
    def random(self) -> Random:
        """Random numbers of this execution: a retry gets the same ones."""
        return self._scope.transaction.random

    def sql(self, query: str, /, **values: Any) -> Coroutine[Any, Any, list[dict[str, Any]]]:
        """Rows of an SQL query that the builder cannot say, in the same snapshot, with ``:named`` values.

        Values come as the database's driver gives them. The read set then holds all tables.

        Raises:
            DataError: It is no query, or writes.
        """
        return self._scope.track(self._sql(query, values))

    def run_query(
        self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Run another query in the same snapshot, with its arguments and result checked."""
        return self._scope.track(self._runner.nested_query(self._scope, self._depth, function, args, kwargs))

    async def _sql(self, query: str, values: dict[str, Any]) -> list[dict[str, Any]]:
        transaction = self._scope.transaction
        sql, args = number_parameters(query, values, transaction.store.dialect.parameter)
        async with self._scope.lock:
            names, rows = await transaction.session.fetch_read_only(sql, args, transaction.rows_left)
        transaction.read_set.note_everything()
        if len(rows) > transaction.rows_left:
            raise LimitExceeded("ctx.sql: more rows than one transaction may read.", fix="Add a LIMIT to the query.")
        return [dict(zip(names, row, strict=True)) for row in rows]


class MutationCtx(QueryCtx):
    """The ctx of a mutation: one serializable transaction to read and write.

    Attributes:
        db: Typed tables.
        scheduler: Functions to run later, if this transaction commits.
    """

    db: DatabaseWriter
    scheduler: Scheduler

    def __init__(self, runner: Runner, scope: Scope, depth: int) -> None:
        super().__init__(runner, scope, depth)
        self.db = DatabaseWriter(scope)
        self.scheduler = Scheduler(runner, scope)

    def run_mutation(
        self, function: MutationFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Run another mutation as a sub-transaction: if it raises, only its own changes are undone."""
        return self._scope.track(self._runner.nested_mutation(self._scope, self._depth, function, args, kwargs))


class ActionCtx:
    """The ctx of an action: no transaction of its own; each query and mutation it runs is one.

    Attributes:
        scheduler: Functions to run later, whatever becomes of this action.
        cancelled: Set when someone asked for this action's job to stop.
    """

    def __init__(self, runner: Runner, function: str, depth: int, cancelled: asyncio.Event | None = None) -> None:
        self._runner = runner
        self._function = function
        self._depth = depth
        self._calls: list[Coroutine[Any, Any, Any]] = []
        self._random: Random | None = None
        self.cancelled = cancelled or asyncio.Event()
        self.scheduler = Scheduler(runner, None)

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        return self._runner.now()

    @property
    def random(self) -> Random:
        """Random numbers."""
        if self._random is None:
            self._random = self._runner.random()
        return self._random

    def run_query(
        self, function: QueryFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Run a query in a snapshot of its own."""
        return self._track(self._runner.run_query(function, args, kwargs, self._depth + 1))

    def run_mutation(
        self, function: MutationFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Run a mutation in a transaction of its own."""
        return self._track(self._runner.run_mutation(function, args, kwargs, self._depth + 1))

    def run_action(
        self, function: ActionFunction[Any, P, R, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Run another action. Of use to change the runtime; otherwise a plain helper function does."""
        return self._track(self._runner.run_action(function, args, kwargs, self._depth + 1, self.cancelled))

    def _track(self, call: Coroutine[Any, Any, R]) -> Coroutine[Any, Any, R]:
        self._calls = [known for known in self._calls if is_unfinished(known)]
        self._calls.append(call)
        return call

    def _end(self) -> None:
        left = [call for call in (*self._calls, *self.scheduler.calls) if is_unfinished(call)]
        if left:
            names = ", ".join(sorted({call_name(call) for call in left}))
            close_calls(left)
            raise UnawaitedCall(
                f"{self._function} ended, but these calls were not awaited: {names}.",
                fix="Write await before them.",
            )


def number_parameters(query: str, values: dict[str, Any], mark: str) -> tuple[str, list[Any]]:
    """SQL with numbered parameters in place of the ``:names`` that have a value, and the values in order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in values:
            return match[0]
        if match[1] not in names:
            names.append(match[1])
        return f"{mark}{names.index(match[1]) + 1}"

    sql = _NAMED.sub(number, query)
    unused = values.keys() - set(names)
    if unused:
        raise DataError(f"ctx.sql: {', '.join(sorted(unused))} does not occur in the query.", fix="Write :name there.")
    return sql, [values[name] for name in names]
