"""Reads the rows and records of many runs of a reactive task in one snapshot.

It reads the requested columns and those that filter and watch need. `TaskRun` decides whether a row is still as its run
was planned for. A row that cannot be read affects no other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.calls.handlers.taskrun import TaskRun, doc_id_of
from penstock.calls.run.attempts import Attempts
from penstock.calls.run.engine import Engine
from penstock.errors import DataError, PenstockError, TaskConditionFailed
from penstock.functions.function import AnyFunction
from penstock.schema.table import Table, make_row
from penstock.store.contract.session import Row, Session
from penstock.store.sql.statements import TableStatements
from penstock.transaction.rows import read_rows

Calls = Sequence[tuple[AnyFunction, Mapping[str, Any]]]


async def get_documents(
    runner: Attempts, runs: Sequence[TaskRun], fields: Sequence[str] | None
) -> list[Table | PenstockError]:
    """For each run its row, or why it has changed or cannot be read; ValueInvalid for a field the table lacks."""
    first, engine = runs[0], runner.engine
    definition = first.task.definition
    statements = engine.statements.of(definition.table, definition)
    names = None if fields is None else first.columns(fields)

    async def once() -> list[Table | PenstockError]:
        session = await engine.store.begin_read()
        try:
            generations = await engine.store.tasks.generations(session, first.number, [run.key for run in runs])
            ids = [run.doc_id for run in runs]
            found = await _rows(session, statements, ids, names)
            return [
                await _checked(session, run, generations.get(run.key), found.get(row_id), fields)
                for run, row_id in zip(runs, ids, strict=True)
            ]
        finally:
            await session.rollback()

    return await runner.patiently(once)


async def known_generations(engine: Engine, calls: Calls) -> dict[tuple[int, str], int | None]:
    """The generations of runs that are about to share a transaction, if their handlers ask for rows.

    They are read before it begins, since each read in it could conflict. `TaskRun.check` compares the row itself, so an
    old generation does no harm.
    """
    found: dict[tuple[int, str], int | None] = {}
    for name, keys in _keys(engine, calls).items():
        number = engine.tasks[name].id
        generations = await engine.store.tasks.generations(None, number, keys)
        found |= {(number, key): generations.get(key) for key in keys}
    return found


def known_ids(engine: Engine, calls: Calls) -> dict[type[Table], dict[Any, None]]:
    """The ids of the rows of these runs, as tables encode them."""
    found: dict[type[Table], dict[Any, None]] = {}
    tasks = {task.name: task.definition for task in engine.reactive.values()}
    for name, keys in _keys(engine, calls).items():
        definition = tasks[name]
        ids = (definition.encode_key(doc_id_of(engine.store.dialect, definition, key)) for key in keys)
        found.setdefault(definition.table, {}).update(dict.fromkeys(ids))
    return found


def _keys(engine: Engine, calls: Calls) -> dict[str, list[str]]:
    """The keys of rows of runs, by the names of tasks whose handlers ask for rows."""
    found: dict[str, list[str]] = {}
    for function, arguments in calls:
        task = engine.reactive.get(function.name)
        if task is not None and task.name in engine.readers:
            found.setdefault(task.name, []).append(arguments["key"])
    return found


async def _checked(
    session: Session,
    run: TaskRun,
    generation: int | None,
    row: Table | PenstockError | None,
    fields: Sequence[str] | None,
) -> Table | PenstockError:
    if isinstance(row, PenstockError):
        return row
    try:
        return run.check(generation, row, fields)
    except TaskConditionFailed as error:
        return await run.meant(session, generation, error)


async def _rows(
    session: Session, statements: TableStatements, ids: Sequence[Any], names: tuple[str, ...] | None
) -> dict[Any, Table | PenstockError]:
    """The rows with these ids or why one cannot be read. A row of another program is read whole, to check it whole."""
    definition = statements.definition
    part = names if definition.managed else None
    keys = [definition.encode_key(one) for one in ids]
    if len(keys) > 1 and statements.dialect.any_of:
        with contextlib.suppress(DataError):  # if one row is unreadable, each is read alone
            rows = await _read_many(session, statements, keys, part)
            return {definition.key_in(row.__dict__): row for row in rows}
    found: dict[Any, Table | PenstockError] = {}
    for row_id, key in zip(ids, keys, strict=True):
        try:
            rows = await _read_one(session, statements, key, part)
            found |= zip((row_id,), rows, strict=False)  # one row or none
        except DataError as error:
            found[row_id] = error
    return found


async def _read_many(
    session: Session, statements: TableStatements, keys: list[Any], part: tuple[str, ...] | None
) -> list[Table]:
    many = statements.get_many(keys) if part is None else (statements.part(part, many=True)[0], [keys])
    return _made(statements, await session.fetch(*many), part)


async def _read_one(
    session: Session, statements: TableStatements, key: Any, part: tuple[str, ...] | None
) -> list[Table]:
    statement = statements.get() if part is None else statements.part(part)[0]
    return _made(statements, await session.fetch(statement, statements.key_args(key)), part)


def _made(statements: TableStatements, rows: Sequence[Row], part: tuple[str, ...] | None) -> list[Table]:
    if part is None:
        return read_rows(statements, rows)
    return [make_row(statements.definition.table, given) for given in statements.part(part)[1](rows)]
