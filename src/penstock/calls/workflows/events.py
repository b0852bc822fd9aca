"""Events: what others tell the run of a workflow. One that is sent before the run waits for it is kept.

Owns the declaration and the sending. `run` receives them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar, overload
from uuid import UUID

from penstock.calls.enqueue.jobs import JobCalls, calls_of
from penstock.calls.run.face import Face
from penstock.calls.workflows.token import make_unknown_token, read_token
from penstock.errors import ArgumentsInvalid, DataError, DeclarationError, LimitExceeded, TokenExpired, ValueInvalid
from penstock.functions.function import WorkflowFunction
from penstock.functions.programs import NAME
from penstock.functions.signature import encode_any, encoder_of
from penstock.jobs.job import JobId, job_id, job_ids, job_uuid
from penstock.schema.encoder import Encoder
from penstock.store.guest.connections import SyncConnection
from penstock.transaction.transaction import Transaction
from penstock.values import is_storable, text_bytes
from penstock.workflows.record import BEGINNING, Beginning

T = TypeVar("T")
Address: TypeAlias = JobId | tuple[WorkflowFunction[Any, Any, Any, Any], str]
"""A run: the id of its job, or its workflow and the key with which it was enqueued."""

MOST_UNREAD = 10_000  # events of one run that it has not received; the SQL of plain senders says so too
LONGEST_KEY = 200


class Event(Generic[T]):
    """An event that runs of workflows wait for; made with `App.event`.

    Attributes:
        name: Its name.
        type: The type of its payload.
    """

    def __init__(self, name: str, kind: Any, otherwise: Callable[[Any], JobCalls]) -> None:
        given: object = name
        if not isinstance(given, str) or not NAME.fullmatch(given):
            raise DeclarationError(
                f"An event cannot be called {name!r}.",
                fix="Use letters, digits, dot, dash and underscore, at most 63, a letter first.",
            )
        self.name = name
        self.type = kind
        self._otherwise = otherwise

    def __repr__(self) -> str:
        return f"<event {self.name}>"

    @overload
    def send(self, ctx: Face | SyncConnection, run: Address, payload: T, *, key: str | None = None) -> None: ...
    @overload
    def send(self, ctx: Any, run: Address, payload: T, *, key: str | None = None) -> Coroutine[Any, Any, None]: ...
    def send(self, ctx: Any, run: Address, payload: T, *, key: str | None = None) -> Any:
        """Send it to a run. In a mutation it is sent if and only if the transaction commits.

        In a transaction of your own likewise, if its connection is passed, as to `Workpool.enqueue`. It is kept until
        the run waits for it, and received once.

        Args:
            ctx: The ctx of a mutation or an action, the backend of a program, or a connection.
            run: The id of the run's job; or ``(workflow, key)`` for the run that has this key.
            payload: The payload.
            key: Of several that are sent to the run with the same key, only the first one is.

        Raises:
            DataError: There is no such run, or it has ended; or several pools have a run with this key.
            ValueInvalid: The payload is of another type, or the key cannot be.
            LimitExceeded: The payload is too large, or the run has too many events that it has not received.
        """
        calls = calls_of(ctx, writes=True, otherwise=self._otherwise)
        return calls.answer(self._send_to_one(calls, run, payload, key))

    async def _send_to_one(self, calls: JobCalls, run: Address, payload: T, key: str | None) -> None:
        uuid = await _find_by_key(calls, run) if isinstance(run, tuple) else job_uuid(run)
        if not await self._send(calls, [uuid], payload, key):
            raise DataError(f"No run {job_id(uuid)} waits for event {self.name}: there is none, or it has ended.")

    @overload
    def broadcast(
        self, ctx: Face | SyncConnection, runs: Iterable[JobId], payload: T, *, key: str | None = None
    ) -> list[JobId]: ...
    @overload
    def broadcast(
        self, ctx: Any, runs: Iterable[JobId], payload: T, *, key: str | None = None
    ) -> Coroutine[Any, Any, list[JobId]]: ...
    def broadcast(self, ctx: Any, runs: Iterable[JobId], payload: T, *, key: str | None = None) -> Any:
        """Send it to many runs at once, as `send` does; the ids of the runs that got it, as they have not ended.

        Args:
            ctx: As for `send`.
            runs: The ids of the runs' jobs.
            payload: The payload.
            key: As for `send`, for each run.

        Raises:
            ValueInvalid: The payload is of another type, or the key cannot be.
            LimitExceeded: The payload is too large, or a run has too many events that it has not received.
        """
        calls = calls_of(ctx, writes=True, otherwise=self._otherwise)
        return calls.answer(self._send_to_many(calls, runs, payload, key))

    async def _send_to_many(self, calls: JobCalls, runs: Iterable[JobId], payload: T, key: str | None) -> list[JobId]:
        return job_ids(await self._send(calls, [*map(job_uuid, runs)], payload, key))

    @overload
    def redeem(self, ctx: Face, token: str, payload: T) -> bool: ...
    @overload
    def redeem(self, ctx: Any, token: str, payload: T) -> Coroutine[Any, Any, bool]: ...
    def redeem(self, ctx: Any, token: str, payload: T) -> Any:
        """Send it with a token that `WorkflowCtx.event_token` gave; False if that was used before.

        Args:
            ctx: The ctx of a mutation or an action, or the backend of a program.
            token: The token.
            payload: The payload.

        Raises:
            TokenInvalid: There is no such token, or it is one of another event.
            TokenExpired: Its time is over, or its run has ended.
            ValueInvalid: The payload is of another type.
            LimitExceeded: The payload is too large.
        """
        calls = calls_of(ctx, writes=True)
        return calls.answer(self._redeem(calls, token, payload))

    async def _redeem(self, calls: JobCalls, token: str, payload: T) -> bool:
        given = read_token(token)
        store, run, name = calls.engine.store, given.run, self.name
        begun = await calls.write(lambda one: store.workflows.find(run, BEGINNING, one.session))
        if begun is None or given.event != self.name:
            raise make_unknown_token()
        if not given.is_sealed_with(Beginning.read(store.encryption.decrypt(begun.outcome or "{}")).secret):
            raise make_unknown_token()
        if given.expires_at <= calls.now():
            raise TokenExpired("The token's time is over.")
        used = await calls.write(lambda one: store.workflows.has_key(run, name, given.seal, one.session))
        if not used and not await self._send(calls, [given.run], payload, given.seal):
            raise TokenExpired("The run of the token has ended.")
        return not used

    async def _send(self, calls: JobCalls, runs: list[UUID], payload: T, key: str | None) -> list[UUID]:
        """Send it to those of these runs that have not ended; these."""
        given: object = key
        if given is not None and not (isinstance(given, str) and 0 < len(given) <= LONGEST_KEY and is_storable(given)):
            raise ValueInvalid(f"The key of an event is a text of 1 to {LONGEST_KEY} characters, not {key!r}.")
        text, limit = self.encode(payload), calls.engine.config.max_job_argument_bytes
        if (size := text_bytes(text)) > limit:
            raise LimitExceeded(
                f"The payload of event {self.name} has {size} bytes; one may have {limit}.",
                fix="Store the data in a table, and send its id.",
                limit=limit,
            )
        store, stored = calls.engine.store.workflows, calls.engine.store.encryption.encrypt(text)

        async def send(transaction: Transaction) -> list[UUID]:
            known = await transaction.find_runs(runs, MOST_UNREAD)
            if full := [job_id(run) for run in runs if known.get(run)]:
                raise LimitExceeded(
                    f"Run {full[0]} has {MOST_UNREAD} events that it has not received, which is the most.",
                    fix="Have its workflow receive them, or cancel it.",
                    limit=MOST_UNREAD,
                )
            reached = [run for run in dict.fromkeys(runs) if run in known]
            if reached:
                await store.send(transaction, reached, self.name, key, stored, transaction.now)
                transaction.wakes = True
            return reached

        return await calls.write(send)

    def encode(self, payload: Any) -> str:
        """A payload as JSON.

        Raises:
            ValueInvalid: It is of another type.
        """
        try:
            return encode_any(payload, f"The payload of event {self.name}", self.type)
        except ArgumentsInvalid as error:
            raise ValueInvalid(error.what, fix=error.fix) from error

    def decode(self, text: str) -> T:
        """A payload from JSON."""
        found: T = self._encoder.decode(text)
        return found

    @cached_property
    def _encoder(self) -> Encoder:
        return encoder_of(self.type)


async def _find_by_key(calls: JobCalls, address: tuple[object, ...]) -> UUID:
    """Find the run of a workflow that has a key.

    Raises:
        DataError: There is none, or there are several.
        ValueInvalid: It is no address.
    """
    workflow, key = address if len(address) == 2 else (None, None)  # noqa: PLR2004 - a pair
    if not (isinstance(workflow, WorkflowFunction) and isinstance(key, str) and is_storable(key)):
        raise ValueInvalid(f"{address!r} is no address of a run.", fix="Write (workflow, key), or the id of its job.")
    name, wanted = workflow.name, key
    found = await calls.write(lambda transaction: transaction.find_keyed_runs(name, wanted))
    if len(found) != 1:
        many = ", ".join(map(job_id, sorted(found)))
        raise DataError(
            f"Several runs of {workflow.name} have the key {key!r}: {many}."
            if found
            else f"No run of {workflow.name} has the key {key!r}: there is none, or it has ended.",
            fix="Send it to one by its id." if found else "Enqueue it with key=… in the options of its pool.",
        )
    return found.pop()
