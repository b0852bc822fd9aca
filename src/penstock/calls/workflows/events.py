"""Events: what others tell the run of a workflow. One that is sent before the run waits for it is kept.

Owns the declaration and the sending. `run` receives them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Generic, TypeVar

from penstock.calls.enqueue.jobs import calls_of
from penstock.errors import ArgumentsInvalid, DataError, DeclarationError, LimitExceeded, ValueInvalid
from penstock.functions.programs import NAME
from penstock.functions.signature import encode_any, encoder_of
from penstock.jobs.job import JobId, job_uuid
from penstock.schema.encoder import Encoder
from penstock.transaction.transaction import Transaction
from penstock.values import is_storable, text_bytes

T = TypeVar("T")

_LONGEST_KEY = 200


class Event(Generic[T]):
    """An event that runs of workflows wait for; made with `App.event`.

    Attributes:
        name: Its name.
        type: The type of its payload.
    """

    def __init__(self, name: str, kind: Any) -> None:
        given: object = name
        if not isinstance(given, str) or not NAME.fullmatch(given):
            raise DeclarationError(
                f"An event cannot be called {name!r}.",
                fix="Use letters, digits, dot, dash and underscore, at most 63, a letter first.",
            )
        self.name = name
        self.type = kind

    def __repr__(self) -> str:
        return f"<event {self.name}>"

    async def send(self, ctx: Any, run: JobId, payload: T, *, key: str | None = None) -> None:
        """Send it to a run. In a mutation it is sent if and only if the transaction commits.

        It is kept until the run waits for it, and received once.

        Args:
            ctx: The ctx of a mutation or an action, or the backend of a program.
            run: The id of the run's job.
            payload: The payload.
            key: Of several that are sent to the run with the same key, only the first one is.

        Raises:
            DataError: There is no such run, or it has ended.
            ValueInvalid: The payload is of another type, or the key cannot be.
            LimitExceeded: The payload is too large.
        """
        calls, uuid = calls_of(ctx, writes=True), job_uuid(run)
        given: object = key
        if given is not None and not (isinstance(given, str) and 0 < len(given) <= _LONGEST_KEY and is_storable(given)):
            raise ValueInvalid(f"The key of an event is a text of 1 to {_LONGEST_KEY} characters, not {key!r}.")
        text, limit = self.encode(payload), calls.engine.config.max_job_argument_bytes
        if (size := text_bytes(text)) > limit:
            raise LimitExceeded(
                f"The payload of event {self.name} has {size} bytes; one may have {limit}.",
                fix="Store the data in a table, and send its id.",
                limit=limit,
            )
        store, stored = calls.engine.store.workflows, calls.engine.store.encryption.encrypt(text)

        async def send(transaction: Transaction) -> bool:
            known = await transaction.remembering(store.is_unfinished(uuid))
            if not known and all(job.id != uuid for job in transaction.jobs):
                return False
            await store.send(transaction, uuid, self.name, key, stored, transaction.now)
            transaction.wakes = True
            return True

        if not await calls.write(send):
            raise DataError(f"No run {run} waits for event {self.name}: there is none, or it has ended.")

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
