"""`ctx.jobs`: the statuses of jobs, by id or by conditions.

A live query hears within 0.25 seconds of changes of the jobs that it has read by their ids. No feed tells of jobs that
join a list, so a live query that lists jobs runs again at intervals.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from functools import partial
from typing import Any, TypedDict, Unpack
from uuid import UUID

from pydantic_core import to_json

from penstock.calls.enqueue.jobs import JobCalls
from penstock.errors import ContextError, CursorInvalid, UsageError
from penstock.functions.component import own_function, own_name
from penstock.functions.function import AnyFunction, Function
from penstock.jobs.filter import MOST_LISTED, JobFilter, check_limit
from penstock.jobs.job import DEFAULT_POOL, JobId, JobStatus, JobStatuses, job_uuid, status_of_new
from penstock.schema.ids import JOB_PREFIX, is_id
from penstock.store.nouns.jobs import ABOVE_ALL, BELOW_ALL
from penstock.transaction.pages import Page, PaginationOptions
from penstock.transaction.tracking import track_calls
from penstock.transaction.transaction import Transaction
from penstock.transaction.words import refuses_other_words

_MOST_WATCHED = 100  # jobs of a list whose statuses a live query looks at by their ids
_SPLIT_ABOVE = MOST_LISTED * 3 // 4


class JobConditions(TypedDict, total=False):
    """Conditions on jobs; a job has to meet each. See `JobFilter`."""

    state: str
    function: AnyFunction | str
    pool: str
    name: str
    key: str
    concurrency_key: str
    since: datetime
    before: datetime


@refuses_other_words
class JobReader:
    """``ctx.jobs`` of one run of a function: the statuses of jobs, without secrets."""

    __slots__ = ("_calls", "_transaction")

    def __init__(self, calls: JobCalls, transaction: Transaction) -> None:
        self._calls = calls
        self._transaction = transaction

    @track_calls
    async def get(self, job: JobId) -> JobStatus | None:
        """The status of a job; None if it is unknown, or its status has expired.

        Raises:
            IdInvalid: It is not an id of a job.
        """
        return await self._calls.look(job_uuid(job))

    @track_calls
    async def list(self, *, limit: int = 100, **where: Unpack[JobConditions]) -> JobStatuses:
        """Jobs that meet conditions, newest first: stored ones, and what this transaction enqueues.

        A live query that lists jobs runs again after 0.25 to 5 seconds, and within 0.25 seconds of a change of one of
        the first 100 jobs in its list.

        Args:
            limit: The most jobs, from 1 to 10,000.
            **where: Any of these.
                ``state``: pending, running, completing, success, failed, canceled or skipped; or the stage of a pending
                job: ready, scheduled or retrying.
                ``function``: the decorated function, or its name.
                ``pool``: the name of their pool; ``"default"`` for those of the scheduler.
                ``name``, ``key``, ``concurrency_key``: the option with which they were enqueued.
                ``since``, ``before``: the time of their end, or of their enqueueing if they have not ended, from the
                first to before the second.

        Raises:
            ContextError: `function` is neither a function nor a text.
            LimitExceeded: They are more than one transaction may read.
            UsageError: There is no such condition.
            ValueInvalid: A condition cannot have this value, or so many cannot be asked for.
        """
        check_limit(limit)
        return await self._find(self._filter_of(where), limit, ABOVE_ALL)

    @track_calls
    async def paginate(
        self, options: PaginationOptions | None = None, /, **where: Unpack[JobConditions]
    ) -> Page[JobStatus]:
        """A page of jobs that meet conditions, newest first, and the cursor after which the next page begins.

        Args:
            options: The page that a client asks for; the first 100 jobs by default. In a live query it keeps its ends.
            **where: As for `list`.

        Raises:
            CursorInvalid: A cursor is malformed, or of another list of jobs.
            UsageError: There is no such condition.
            ValueInvalid: A condition cannot have this value.
        """
        asked, number = options or PaginationOptions(), None if options is None else self._transaction.begin_page()
        filter_ = self._filter_of(where)
        mark = hashlib.blake2b(repr(filter_).encode(), digest_size=6).hexdigest()
        below = ABOVE_ALL if asked.cursor is None else _place(asked.cursor, mark)
        end = asked.end_cursor or (None if number is None else self._transaction.end_of_page(number))
        if below is None:  # after the end
            page, done, end = [], True, end or f"{mark}."
        elif end is None:
            found = await self._find(filter_, min(asked.num_items + 1, MOST_LISTED), below)
            page, done = found[: asked.num_items], len(found) <= asked.num_items
            end = f"{mark}." if done else f"{mark}.{page[-1].id}"
        else:
            last = _place(end, mark)
            page = await self._find(filter_, MOST_LISTED, below, last or BELOW_ALL)
            cut = len(page) == MOST_LISTED and job_uuid(page[-1].id) != last
            if cut:
                end = f"{mark}.{page[-1].id}"
            done = last is None and not cut
        if number is not None:
            self._transaction.page_ends[number] = end
        return Page(
            page=page,
            is_done=done,
            continue_cursor=end,
            split_cursor=f"{mark}.{page[(len(page) - 1) // 2].id}" if len(page) > 1 else None,
            page_status="SplitRecommended" if len(page) > _SPLIT_ABOVE else None,
        )

    async def _find(self, where: JobFilter, limit: int, below: UUID, down_to: UUID = BELOW_ALL) -> JobStatuses:
        """Jobs between two ids, newest first, also new ones that this transaction stores at its end."""
        calls, transaction = self._calls, self._transaction
        store, now, decrypt = calls.store.jobs, transaction.now, calls.store.encryption.decrypt
        new = [status_of_new(job, now, decrypt) for job in transaction.jobs if down_to <= job.id < below]
        found = await calls.read(partial(store.list, where=where, limit=limit, now=now, below=below, down_to=down_to))
        found = [*filter(where.meets_new, new), *found]
        found = sorted(found, key=lambda job: job_uuid(job.id), reverse=True)[:limit]
        transaction.count_read(len(found), sum(map(_bytes_of, found)))
        transaction.read_set.note_jobs(job_uuid(job.id) for job in found[:_MOST_WATCHED])
        return list(map(calls.mask, found))

    def _filter_of(self, where: JobConditions) -> JobFilter:
        """The jobs that conditions mean; in a component those of its own functions, by its own names."""
        if unknown := sorted(where.keys() - JobConditions.__annotations__.keys()):
            words = ", ".join(JobConditions.__annotations__)
            raise UsageError(f"Jobs have no property {', '.join(unknown)}.", fix=f"Properties are: {words}.")
        conditions: dict[str, Any] = dict(where)
        component, function, pool = self._calls.component, conditions.pop("function", None), conditions.get("pool")
        if isinstance(function, Function):
            conditions["function"] = own_function(component, function).name
        elif isinstance(function, str):
            conditions["function"] = own_name(component, function)
        elif function is not None:
            raise ContextError(
                f"{function!r} is not a function of an app.", fix="Pass the decorated function, or its name."
            )
        if component is not None:
            conditions["prefix"] = component.prefix("")
            if isinstance(pool, str) and pool != DEFAULT_POOL:
                conditions["pool"] = component.prefix(pool)
        return JobFilter(**conditions)


def _place(cursor: str, mark: str) -> UUID | None:
    """The id of the job after which a page begins; None at the end of the list."""
    known, dot, job = cursor.partition(".")
    if known != mark or not dot or (job and not is_id(JOB_PREFIX, job)):
        raise CursorInvalid("InvalidCursor: the cursor is not one of this list of jobs.", fix="Begin with cursor=None.")
    return job_uuid(job) if job else None


def _bytes_of(job: JobStatus) -> int:
    return len(to_json([job.args, job.result], fallback=str)) + len(job.traceback or "")
