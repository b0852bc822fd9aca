"""A message: one change of a row, or a payload sent to a topic, as the handler of an outbox gets it.

Owns its identity, which is the same in each attempt, and the checks of topics and keys. Leaves reading
captured rows to `calls/handlers/deliveries`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, TypeVar
from uuid import NAMESPACE_URL, uuid5

from pydantic_core import to_jsonable_python

from penstock.changes.change import RESENT, CapturedChange
from penstock.dataclass import dataclass
from penstock.errors import InputError, ValueInvalid
from penstock.values import check_text

T = TypeVar("T")

MessageKind = Literal["insert", "update", "delete", "truncate", "message"]

TOPIC = "message"  # the kind of change that a sent message is
KIND_OF: dict[str, MessageKind] = {
    "enter": "insert",
    "change": "update",
    "leave": "delete",
    "delete": "delete",
    "truncate": "truncate",
    TOPIC: "message",
    RESENT: "insert",
}
LONGEST_TOPIC = 100
LONGEST_KEY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Generic[T]):
    """A message, for a handler that does not ask for the row or the payload alone.

    Attributes:
        id: The same in each attempt, and unique: the idempotency key for the receiver.
        outbox: The name of the outbox.
        number: Its number in the outbox: a later message has a greater one, unless it is
            of a transaction that was open before.
        kind: The change of the row: ``insert``, ``update``, ``delete`` or ``truncate``; ``message`` if it was
            sent to a topic. With a filter, a row is inserted when it begins to match, and deleted when it matches no
            more.
        key: Messages with the same key are handed over in their order. It is the key of the row, the value of the
            column that the outbox is partitioned by, or the key that was sent along. None of a message without, such as
            a row that has None there.
        row: The row as it was written; None if it was deleted, or if there is none.
        previous: The row as it was before an update or a delete; None otherwise.
        payload: The payload sent to the topic: of the type in the handler's ``Message[…]``, or as JSON values; None
            of a row.
        topic: The topic; None of a row.
        written_at: When it was written, by the database's clock.
        older: Whether it is a row that was there before the outbox was; `written_at` is then when it was read.
        resent: Whether it is a row that somebody sends again with `resend`; `written_at` is then when that was.
        attempt: The number of this attempt to deliver it, from 1.
        fence: A fencing token: it rises each time a process takes the outbox over. A sink that keeps the greatest one
            and refuses smaller ones takes nothing from a process that was suspended and overtaken.
    """

    id: str
    outbox: str
    number: int
    kind: MessageKind
    key: str | None = None
    row: T | None = None
    previous: T | None = None
    payload: Any = None
    topic: str | None = None
    written_at: datetime
    older: bool = False
    resent: bool = False
    attempt: int = 1
    fence: int = 0

    def cloud_event(self, source: str, *, type: str | None = None, data: Any = None) -> dict[str, Any]:  # noqa: A002 - the word of CloudEvents
        """The message as a CloudEvent 1.0, in its JSON form.

        Args:
            source: The URI of its origin.
            type: The type of the event; by default the outbox and the kind, as in ``bookings.insert``.
            data: The data of the event; by default the payload, the row, or the row before it was deleted.

        Raises:
            InputError: `source` is empty.
        """
        if not source:
            raise InputError("A CloudEvent needs a source.", fix='Pass a URI, such as "https://shop.example/orders".')
        said: Any = to_jsonable_python(self.payload, bytes_mode="base64")
        if self.kind != "message":
            row: Any = self.row if self.row is not None else self.previous
            said = row.model_dump(mode="json") if hasattr(row, "model_dump") else row
        event = {
            "specversion": "1.0",
            "id": self.id,
            "source": source,
            "type": type or f"{self.outbox}.{self.kind}",
            "time": self.written_at.isoformat(),
            "datacontenttype": "application/json",
            "data": said if data is None else data,
        }
        return event if self.key is None else event | {"subject": self.key}


def message_id(outbox: str, change: CapturedChange) -> str:
    """The id of a message, made of values that survive a restored dump, unlike numbers."""
    when = "" if change.seq < 0 else change.changed_at.isoformat()
    said = ("penstock", "outbox", outbox, "row" if change.seq < 0 else str(change.seq), when, change.key or "")
    return str(uuid5(NAMESPACE_URL, "/".join(said)))


def is_topic(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= LONGEST_TOPIC and name.isprintable()


def check_key(key: object) -> None:
    if key is None:
        return
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        given = f"{len(key)} characters" if isinstance(key, str) else repr(key)
        raise ValueInvalid(
            f"The key of a message is a text of 1 to {LONGEST_KEY} characters, not {given}.",
            fix="Leave it out for none.",
        )
    check_text(key, "The key of a message")
