"""`ctx.work`: the attempt at a job, for its function: its facts, progress, and completion from outside.

Owns the checks at the door. Workers write progress, of many jobs at once; `calls/enqueue/tokens` settles by token.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock.calls.run.attempts import Attempts
from penstock.calls.run.jobrun import JobRun
from penstock.clock import secret
from penstock.errors import ContextError, LeaseLost, ValueInvalid
from penstock.jobs.job import JobId, job_uuid
from penstock.jobs.progress import progress_of
from penstock.jobs.token import token_of, token_text
from penstock.transaction.tracking import Calls, track_calls

LONGEST_WAIT = timedelta(days=366)


class ActionWork:
    """``ctx.work`` of an action: the attempt at a job that it runs in."""

    __slots__ = ("_attempt", "_calls", "_runner")

    def __init__(self, attempt: JobRun, runner: Attempts, calls: Calls) -> None:
        self._attempt = attempt
        self._runner = runner
        self._calls = calls

    @property
    def id(self) -> JobId:
        """The id of the job."""
        return self._attempt.work.id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._attempt.work.attempt

    @property
    def key(self) -> str:
        """A key for outside systems that is the same in each attempt; see `Work`."""
        return self._attempt.work.key

    @property
    def deadline(self) -> datetime | None:
        """The time at which the attempt is stopped; None if it has no limit."""
        return self._attempt.work.deadline

    @property
    def cancelled(self) -> bool:
        """Whether someone asked for the job to stop."""
        return self._attempt.cancelled.is_set()

    @track_calls
    async def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far the job has come; its status shows it, about once a second.

        It costs nothing to say it often: only the last one is written.

        Args:
            done: The amount that is done.
            total: The whole amount, if it is known.
            note: The present step.

        Raises:
            ValueInvalid: A number is none, or negative, or more is done than there is; or the note is too long.
        """
        self._attempt.noticed(self._attempt, progress_of(done, total, note))

    @track_calls
    async def complete_later(self, timeout: timedelta = timedelta(hours=1)) -> str:  # noqa: ASYNC109 - a word of the field
        """Let an outside system say how the job ends; the token with which it does.

        Once the action has returned None, the job goes on without a worker until the token is brought, and keeps its
        slot in its pool. The token goes to `Workpool.complete` or `Workpool.fail`, or over HTTP. If nobody does in
        time, the attempt has failed.

        Args:
            timeout: The longest wait, from now on.

        Raises:
            ValueInvalid: The time is not between 0 and a year.
            ContextError: This attempt has a token already.
            LeaseLost: The job no longer belongs to this worker.
        """
        given: object = timeout
        if not isinstance(given, timedelta) or not timedelta(0) < given <= LONGEST_WAIT:
            raise ValueInvalid(f"complete_later takes a timedelta of up to a year, not {timeout!r}.")
        attempt, runner = self._attempt, self._runner
        if attempt.step:
            raise ContextError(
                "A step of a workflow cannot be completed from outside.", fix="Wait for an event: ctx.wait_for."
            )
        if attempt.issued:
            raise ContextError("This attempt has a token already.", fix="Call complete_later once, and keep the token.")
        text = token_text(job_uuid(self.id), self.attempt, secret())
        token, deadline = token_of(text), runner.now() + timeout
        attempt.issued = True  # an answer that is lost may be one
        store = runner.engine.store
        if not await runner.attempt(lambda: store.tokens.issue(attempt.lease, token, deadline)):
            raise LeaseLost(f"{self.id} no longer belongs to this worker.")
        attempt.held = True
        return text
