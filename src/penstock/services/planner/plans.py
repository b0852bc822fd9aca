"""Writes the plans of rows. If the database refuses some, it writes halves until it finds the rows to leave out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from penstock.errors import DataError, InputError
from penstock.observe.logs import event as log_event
from penstock.reactive.planning import RowPlan
from penstock.store.contract.tasks import Move, Progress
from penstock.store.nouns.tasks import Tasks

_LONGEST_KEY = 200


async def write_plans(
    tasks: Tasks, rows: Sequence[RowPlan], move: Move, now: datetime, progress: Sequence[Progress] = ()
) -> bool:
    """Write plans and move the reader; False if another planner has it."""
    try:
        return await tasks.plan(rows, move, now, progress) is not None
    except (DataError, InputError) as error:
        if not rows:
            raise
        refused = error
    stay = replace(move, after=move.before)
    if not await _write_parts(tasks, rows, stay, now, refused):
        return False
    return await tasks.plan([], move, now, progress) is not None


async def _write_parts(
    tasks: Tasks, rows: Sequence[RowPlan], move: Move, now: datetime, refused: DataError | InputError
) -> bool:
    if len(rows) == 1:
        key = rows[0].key[:_LONGEST_KEY]
        log_event("planner.row_refused", logging.ERROR, task=rows[0].task, key=key, error=refused)
        return True
    middle = len(rows) // 2
    for part in (rows[:middle], rows[middle:]):
        try:
            if await tasks.plan(part, move, now) is None:
                return False
        except (DataError, InputError) as error:
            if not await _write_parts(tasks, part, move, now, error):
                return False
    return True
