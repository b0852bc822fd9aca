"""Reads the rows of runs of a reactive task, with their records, in one snapshot; of many runs at once.

Owns what is read: the columns that are asked for and those that filter and watch need. Leaves to `TaskRun` whether a
row is still as its run was planned for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.calls.run import Runner
from penstock.calls.taskrun import TaskRun
from penstock.errors import TaskConditionFailed
from penstock.schema.table import Table, make_row
from penstock.store.contract import Row, Session
from penstock.store.statements import TableStatements
from penstock.transaction.rows import read_rows


async def get_documents(
    runner: Runner, runs: Sequence[TaskRun], fields: Sequence[str] | None
) -> list[Table | TaskConditionFailed]:
    """For each run its row, or why there is none as it was planned for.

    Raises:
        ValueInvalid: A field is none of the table.
    """
    first, engine = runs[0], runner.engine
    definition = first.task.definition
    statements = engine.statements.of(definition.table, definition)
    names = None if fields is None else first.columns(fields)

    async def once() -> list[Table | TaskConditionFailed]:
        session = await engine.store.begin_read()
        try:
            records = await engine.store.tasks.find_many(session, first.number, [run.key for run in runs])
            ids = [run.doc_id for run in runs]
            rows = await _rows(session, statements, [definition.encode_key(one) for one in ids], names)
        finally:
            await session.rollback()
        found = {definition.key_in(row.__dict__): row for row in rows}
        return [
            _checked(run, records.get(run.key), found.get(row_id), fields)
            for run, row_id in zip(runs, ids, strict=True)
        ]

    return await runner.attempts.run(once, first.task.name, writes=False)


def _checked(run: TaskRun, record: Any, row: Table | None, fields: Sequence[str] | None) -> Table | TaskConditionFailed:
    try:
        return run.check(record, row, fields)
    except TaskConditionFailed as error:
        return error


async def _rows(
    session: Session, statements: TableStatements, keys: list[Any], names: tuple[str, ...] | None
) -> list[Table]:
    """The rows with these keys: whole, or some columns of them.

    A row of another program is read whole, since its declaration is checked as a whole.
    """
    definition = statements.definition
    part = names is not None and definition.managed
    if len(keys) > 1 and statements.dialect.any_of:
        many = (statements.part(names or (), many=True)[0], [keys]) if part else statements.get_many(keys)
        found: list[Row] = [*await session.fetch(*many)]
    else:
        statement = statements.part(names or ())[0] if part else statements.get()
        found = [row for key in keys for row in await session.fetch(statement, statements.key_args(key))]
    if not part:
        return read_rows(statements, found)
    decode = statements.part(names or ())[1]
    return [make_row(definition.table, given) for given in decode(found)]
