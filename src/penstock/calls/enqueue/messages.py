"""`ctx.outbox`: messages to a topic, each sent in the transaction in which the call is awaited.

`services/relay` delivers them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from penstock.calls.enqueue.jobs import JobCalls
from penstock.errors import ArgumentsInvalid, LimitExceeded, TopicNotFound, ValueInvalid
from penstock.functions.signature import encode_any
from penstock.outbox.message import check_key, is_topic
from penstock.transaction.tracking import track_calls
from penstock.values import encode_json, text_bytes

_WHAT = "The payload of a message"


class Sender:
    """Sends messages. In a mutation they are part of its transaction; in an action each is sent at once."""

    __slots__ = ("_calls",)

    def __init__(self, calls: JobCalls) -> None:
        self._calls = calls

    @track_calls
    async def send(self, topic: str, payload: Any, *, key: str | None = None) -> None:
        """Send a message to a topic, now: messages have the order of the statements of their transactions.

        In a mutation it is sent if and only if the transaction commits; in an action at once, even if the action fails.

        Args:
            topic: The topic of an outbox: ``@app.outbox("topic")``.
            payload: The handler's argument: anything that can be an argument of a job, such as a pydantic model or a
                dataclass.
            key: Messages with the same key are in order where it matters which ones wait for each other. It is a text
                of 1 to 200 characters, or None for a message in nobody's way.

        Raises:
            TopicNotFound: No program has ever declared an outbox for the topic on this database.
            ValueInvalid: JSON cannot say the payload, or the key cannot be.
            LimitExceeded: The payload is too large, or one transaction writes too much.
        """
        await send_message(self._calls, topic, payload, key)


async def send_message(calls: JobCalls, topic: str, payload: Any, key: str | None) -> None:
    """Send a message: in the transaction of the calls, or in one of its own. Raises what `Sender.send` raises."""
    check_key(key)
    topic = calls.name(topic)
    text, limit = _encode(calls, topic, payload), calls.engine.config.max_job_argument_bytes
    if (size := text_bytes(text)) > limit:
        raise LimitExceeded(
            f"A message to {topic!r} has {size} bytes; one may have {limit}.",
            fix="Store the data in a table, and send its id.",
            limit=limit,
        )
    tracing = calls.engine.journal.tracing
    trace = None if tracing is None else tracing.current()
    if not is_topic(topic) or not await calls.write(lambda transaction: transaction.send(topic, text, key, trace)):
        raise TopicNotFound(
            f"No outbox was ever declared for the topic {topic!r}.",
            fix=f'Declare one with @app.outbox("{topic}"), and start that program once on this database.',
            topic=topic,
        )


def _encode(calls: JobCalls, topic: str, payload: Any) -> str:
    """A payload as JSON that each handler of the topic takes, and the first that says a type reads as the same."""
    readers = [reader() for reader in calls.engine.registry.topics.get(topic, ())]
    if not readers:  # another program has them, which may read it as any class
        with suppress(Exception):
            return encode_any(payload, _WHAT, type(payload))
        return encode_json(payload, _WHAT)
    readers.sort(key=lambda reader: reader.arguments.__annotations__["payload"] is Any)
    try:
        text = readers[0].encode_one("payload", payload, _WHAT)
    except ArgumentsInvalid as refused:
        try:
            text = encode_any(payload, _WHAT)  # it may have the form in which the handler's type stands in JSON
        except ValueInvalid:
            raise refused from None
    for reader in readers:
        reader.check_json(f'{{"payload":{text}}}')
    return text
