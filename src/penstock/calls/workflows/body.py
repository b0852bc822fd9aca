"""The body of a workflow as it runs: its calls, its time, and the deliveries from which it learns.

Owns the state of the body between two deliveries. It does no I/O: `run` carries out the calls and says what comes next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import field
from datetime import UTC, datetime
from math import ceil, inf
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from pydantic import ValidationError

from penstock.calls.run.face import face_of
from penstock.calls.workflows.events import Event
from penstock.calls.workflows.loop import BodyFuture, BodyLoop, BodyTask, HeldFuture, WorkflowSuspended, make_loop
from penstock.calls.workflows.thread import BodyThread, is_inside
from penstock.calls.workflows.token import EventToken
from penstock.clock import Random, random_of
from penstock.dataclass import dataclass
from penstock.errors import ContextError, LimitExceeded, PenstockError, UnawaitedCall
from penstock.functions.function import AnyFunction
from penstock.jobs.retry import Retry
from penstock.observe.errortext import error_text
from penstock.observe.loglines import context_muted_while
from penstock.transaction.tracking import Calls
from penstock.workflows.history import History, Mismatch
from penstock.workflows.outcome import read_outcome
from penstock.workflows.record import MOST_BYTES, MOST_RECORDS, Beginning, Record, RecordKind, digest_of

T = TypeVar("T")

_ASYNCIO = str(Path(asyncio.__file__).parent)

_LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True)
class StepOptions:
    """The options of a step.

    Attributes:
        pool: The name of the pool in which it runs as a job; None to run within the run.
        retry: When to try again after it raised; None for one attempt.
        once: Whether it must not begin a second time, even if its worker died.
        timeout: The seconds that one attempt may take; None for no limit.
        name: Its name in log events, if it runs as a job.
        unstable_args: Whether a replay may give it other arguments.
    """

    pool: str | None = None
    retry: Retry | None = None
    once: bool = False
    timeout: float | None = None
    name: str | None = None
    unstable_args: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """The result of a body that begins again; see `WorkflowCtx.restart`."""

    args: str  # JSON


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call of the body whose outcome it has not learned yet."""

    number: int
    kind: RecordKind
    name: str  # the name of the function, or the names of the events
    future: BodyFuture
    digest: str = ""
    args: str = "{}"
    shown: str | None = None  # the arguments as they may be shown
    function: AnyFunction | None = None
    options: StepOptions = field(default_factory=StepOptions)
    events: Mapping[str, Event[Any]] = field(default_factory=dict)
    record: Record | None = None  # of its beginning, if that was recorded
    task: asyncio.Task[Any] | None = None  # which made it
    made_at: datetime | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether the body waits for it no more."""
        return self.future.cancelled() or self.future.cancel_asked

    def make_record(self, place: int | None, at: datetime, outcome: str | None = None, **others: Any) -> Record:
        """The record of this call."""
        about: dict[str, Any] = {"made_at": self.made_at, **others}
        return Record(self.number, self.kind, place, at, self.name, self.digest, self.shown, outcome, **about)


class BodyCalls(Calls):
    """The calls of a body. Once the run has let go of it, none begins."""

    __slots__ = ("dropped_body",)

    def __init__(self, function: str) -> None:
        super().__init__(function)
        self.dropped_body = False

    def track(self, call: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Remember a call.

        Raises:
            WorkflowSuspended: The run has let go of the body.
        """
        if self.dropped_body:
            call.close()
            raise WorkflowSuspended
        return super().track(call)


class Body:
    """The body of one run.

    Args:
        function: The workflow.
        history: The records of the run.
        number: The number of the run.
        beginning: The facts with which it began.
        decrypt: Decrypts outcomes.
        most_bytes: The size that a value may have.
    """

    def __init__(
        self,
        function: AnyFunction,
        history: History,
        number: int,
        beginning: Beginning,
        decrypt: Callable[[str], str],
        most_bytes: int = 1_000_000,
    ) -> None:
        self.function = function
        self.history = history
        self.open: dict[int, OpenCall] = {}  # calls that have no outcome, by number, in their order
        self.patches: list[Record] = []  # that it has taken up since the run looked
        self.published: str | None = None  # the state that it has published since then, as JSON
        self.calls = BodyCalls(function.name)
        self._seeds: deque[tuple[float, int]] = deque([*beginning.seeds, (inf, number + beginning.life)])
        self.random: Random = random_of(self._seeds[0][1])
        self.most_bytes = most_bytes
        self.now: datetime
        self.place = 0  # of what it has learned last
        self._replaying = history.is_passed(0)
        self._decrypt = decrypt
        self._secret = beginning.secret  # by which its tokens are known
        self.is_committing: Callable[[int], bool] = lambda _number: False  # whether a mutation may be about to commit
        self._asked: list[int] = []  # mutations that it has cancelled, and that may commit for all it knows
        self._numbers, self.tokens = 0, beginning.tokens
        self._size = 0  # of what it has learned, in characters
        self._mismatch: Mismatch | None = None
        self._dropped = False
        self._compensations: list[Callable[[], Any]] = []
        self._thread = None if function.is_async else BodyThread()
        self._loop: BodyLoop
        self._main: BodyTask

    # ----- for the run

    def begin(self, at: datetime, ctx: Any, arguments: Mapping[str, Any]) -> None:
        """Begin at a time."""
        self.now, self._loop = at, make_loop(at.timestamp(), self.function.name)
        context = context_muted_while(lambda: self._replaying or self._dropped)  # it has logged that before
        self._main = self._loop.create_task(self._run(ctx, arguments), name="main", context=context)
        self._run_dry()

    def deliver(self, record: Record) -> None:
        """Let the body learn something, and run until it waits for more.

        Raises:
            Mismatch: The code does not fit the history.
            ContextError: The body does what no replay can repeat.
        """
        if self.has_ended:
            call = self.open.get(record.number)
            if call is None or not (call.is_abandoned or call.kind is RecordKind.MUTATION):
                raise Mismatch(f"the code ends where call {record.number} was {record}")
            return  # it was about to end, or to commit, as the body ended
        self.history.check_delivery(record, self.open)
        self.now = max(self.now, record.at)
        self._size += len(record.outcome or "") + len(record.args or "")
        self.place = record.place or 0
        self._replaying = self.history.is_passed(self.place)
        while self.place >= self._seeds[0][0]:
            self._seeds.popleft()
            self.random.seed(self._seeds[0][1])
        if record.kind is RecordKind.TIMER:
            if self.next_timer != record.at:
                raise Mismatch(f"a timer was due at {record.at}, and the code now has one at {self.next_timer}")
            self._loop.fire()
        elif record.kind is RecordKind.CANCEL:
            self._main.cancel()
        else:
            self._end_call(self.open.pop(record.number), record)
        self._run_dry()

    def check_replayed(self) -> None:
        """Check, once it has learned all that is recorded, that it has made all recorded calls.

        Raises:
            Mismatch: It has not, such as code of before a change that the run has taken up.
        """
        self.history.check_made(self._numbers)

    @property
    def is_held(self) -> bool:
        """Whether it has cancelled a mutation that may be about to commit, so that it learns nothing else before."""
        return bool(self._asked)

    def go_on(self) -> None:
        """Run on, as far as it may, once more is known of a mutation that holds it.

        Raises:
            Mismatch: The code does not fit the history.
        """
        self._run_dry()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._main.done()

    @property
    def next_timer(self) -> datetime | None:
        """The time of its earliest timer."""
        return _moment(self._loop.next_timer)

    @property
    def is_stuck(self) -> bool:
        """Whether it waits for nothing that could come."""
        return self.next_timer is None and all(call.is_abandoned for call in self.open.values())

    def result(self) -> Any:
        """The result of the body that has ended, or its error.

        Raises:
            UnawaitedCall: It has left calls or tasks.
        """
        error = None if self._main.cancelled() else self._main.exception()
        if self._main.cancelled() or error is not None:
            self.calls.abandon()
            raise error or asyncio.CancelledError
        if left := [task for task in self._loop.list_tasks() if not task.cancelling()]:
            names = ", ".join(sorted(task.get_name() for task in left))
            raise UnawaitedCall(
                f"{self.function.name} ended, but these tasks of it did not: {names}.",
                fix="Await them, use asyncio.TaskGroup, or cancel them.",
            )
        self.calls.end()
        result = self._main.result()
        return result if isinstance(result, Restart) else self.function.signature.check_result(result)

    @property
    def is_long(self) -> bool:
        """Whether it has made four fifths of the calls that a run may make, or learned as much."""
        return self._numbers * 5 >= MOST_RECORDS * 4 or self._size * 5 >= MOST_BYTES * 4

    def tell_stuck(self) -> ContextError:
        """Give the error of a body that waits for nothing that could come, with the line."""
        frame = next((found for task in self._loop.list_tasks() if (found := _waiting_frame(task.get_coro()))), None)
        where = "" if frame is None else f" in line {frame.f_lineno} of {frame.f_code.co_name}"
        return ContextError(
            f"{self.function.name} waits{where} for something that is not recorded, and that never comes.",
            fix="Await calls of the ctx only; do all else in an action.",
        )

    def drop(self) -> None:
        """Let go of the body as it is. No call of its ctx does anything from now on."""
        self._dropped = self.calls.dropped_body = True
        if hasattr(self, "_loop"):
            self._loop.drop()
        self.calls.abandon()

    # ----- for the ctx

    def call(
        self,
        kind: RecordKind,
        name: str,
        args: str = "{}",
        shown: str | None = None,
        function: AnyFunction | None = None,
        options: StepOptions | None = None,
        events: Mapping[str, Event[Any]] | None = None,
    ) -> BodyFuture:
        """Make a call; its future gets the outcome.

        Raises:
            ContextError: It is not called in the body.
            LimitExceeded: The run has made too many calls.
        """
        self.check_inside()
        options = options or StepOptions()
        number, digest = self._take_number(), "" if options.unstable_args else digest_of(args)
        if number > MOST_RECORDS:
            raise LimitExceeded(
                f"{self.function.name} has made {MOST_RECORDS} calls, which is the most that a run may make.",
                fix="Do the work of many small steps in one, or in workflows of their own.",
                limit=MOST_RECORDS,
            )
        if self._size > MOST_BYTES:
            raise LimitExceeded(
                f"The steps of {self.function.name} have results of {self._size} bytes; a run may have {MOST_BYTES}.",
                fix="Store data in tables, and return ids from steps; or begin again with ctx.restart.",
                limit=MOST_BYTES,
            )
        is_mutation = kind is RecordKind.MUTATION
        future = HeldFuture(self._loop, number, self._asked) if is_mutation else self._loop.create_future()
        call = OpenCall(number, kind, name, future, digest, args, shown, function, options, events or {})
        call.made_at = self.now
        call.task = asyncio.current_task(self._loop)
        try:
            call.record = self.history.match(number, kind, name, digest, shown)
        except Mismatch as error:  # the future stays open: the run drops the body
            self._mismatch = self._mismatch or error
        self.open[number] = call
        return future

    def patched(self, name: str, *, activate: bool) -> bool:
        """Take up a change of the code, unless the run has passed its place before; see `WorkflowCtx.patched`."""
        self.check_inside()
        number = self._numbers + 1
        is_new = self.history.find(number) is None
        if not self.history.takes_patch(number, name, replaying=self._replaying) or (is_new and not activate):
            return False
        self._take_number()
        if is_new:
            self.patches.append(Record(number, RecordKind.PATCH, None, self.now, name, outcome='{"result":true}'))
        return True

    def make_token(self, run: UUID, event: str, expires_at: datetime) -> str:
        """Make a token that sends an event to the run."""
        self.check_inside()
        self.tokens += 1
        return EventToken(run, event, self.tokens, ceil(expires_at.timestamp())).seal_with(self._secret)

    def publish(self, state: str) -> None:
        """Publish a state, unless that is done."""
        self.check_inside()
        if not self._replaying or self.history.is_copied:
            self.published = state

    def compensate(self, undo: Callable[[], Any]) -> None:
        """Remember what undoes a step, if the run fails or is canceled."""
        self.check_inside()
        self._compensations.append(undo)

    def check_inside(self) -> None:
        """Refuse a call from elsewhere than the body.

        Raises:
            WorkflowSuspended: The run has let go of the body.
            ContextError: It comes from a step, a thread, or another loop.
        """
        if self._dropped:
            raise WorkflowSuspended
        if not is_inside(self._loop, self._thread):
            self._refuse_outside()

    # ----- steps

    def _refuse_outside(self) -> NoReturn:
        raise ContextError(
            f"The ctx of {self.function.name} was used outside of its body.",
            fix="Steps have a ctx of their own; return what the body needs from them.",
        )

    def _take_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _run_dry(self) -> None:
        self._loop.run_dry()
        while self._asked and self._mismatch is None and not self.is_committing(number := self._asked[0]):
            del self._asked[0]
            known, call = self.history.find(number), self.open[number]
            if (known is None or known.place is None) and isinstance(call.future, HeldFuture):
                call.future.let_go()
                self._loop.run_dry()
        if self._mismatch is not None:
            raise self._mismatch

    def _end_call(self, call: OpenCall, record: Record) -> None:
        self._loop.move(record.at.timestamp())
        if call.future.done():
            return
        function = call.function
        read = _as_it_is if function is None else function.signature.result_of_json
        try:
            result, error = read_outcome(self._decrypt(record.outcome or ""), read)
        except (ValidationError, PenstockError, ValueError, KeyError, TypeError) as error:
            raise Mismatch(
                f"the outcome of call {record.number}, {record}, cannot be read: {error_text(error)}"
            ) from error
        if error is None:
            call.future.set_result(result)
        else:
            call.future.set_exception(error)
        if isinstance(call.future, HeldFuture) and call.future.cancel_asked:
            call.future.cancel_later(call.task)

    async def _run(self, ctx: Any, arguments: Mapping[str, Any]) -> Any:
        handler, thread = self.function.handler, self._thread
        try:
            if thread is None:
                return await handler(ctx, **arguments)
            return await thread.run(lambda wait: handler(face_of(ctx, wait), **arguments), self.function.name)
        except (Exception, asyncio.CancelledError) as error:
            while self._compensations:
                try:
                    await self._compensations.pop()()
                except Exception as failed:  # noqa: BLE001 - the others still run
                    error.add_note(f"A compensation failed: {error_text(failed)}")
            raise


def _waiting_frame(coroutine: Any) -> FrameType | None:
    """The innermost frame of a waiting coroutine that is none of asyncio's own."""
    found: FrameType | None = None
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        if not frame.f_code.co_filename.startswith(_ASYNCIO):
            found = frame
        coroutine = coroutine.cr_await
    return found


def _as_it_is(text: str) -> Any:
    return text


def _moment(seconds: float) -> datetime | None:
    """A time of the loop, rounded up: it has come when this has."""
    if seconds >= _LATEST:
        return None
    found = datetime.fromtimestamp(seconds, UTC)
    return found if found.timestamp() >= seconds else found + datetime.resolution
