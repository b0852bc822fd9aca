"""An outbox as declared: its rows or its topic, its batches, and its policy for failures.

Owns the declaration and its checks at the door. Leaves tracing filters to `reactive/tracing`, and calling the handler
to `calls/handlers/deliveries`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, get_args

from penstock.dataclass import dataclass
from penstock.errors import DeclarationError
from penstock.jobs.retry import Retry
from penstock.reactive.expression import Condition
from penstock.reactive.signature import read_signature, signature
from penstock.schema.table import TableDefinition

Event = Literal["insert", "update", "delete", "truncate"]
OnFailure = Literal["halt", "halt_key", "park"]
Start = Literal["beginning", "end"]

EVENTS: tuple[Event, ...] = get_args(Event)
RETRY = Retry(max_attempts=10, initial_backoff=0.5, base=2.0, max_backoff=60.0)
_READER = "outbox:"
_LONGEST_NAME = 100
_LONGEST_LINGER = timedelta(minutes=1)
_LONGEST_KEPT = timedelta(days=366)
_MOST = 10_000
_KINDS: Mapping[Event, tuple[str, ...]] = {
    "insert": ("enter",),
    "update": ("change",),
    "delete": ("leave", "delete"),
    "truncate": ("truncate",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    name: str  # by which it is kept; one of another name is another outbox
    definition: TableDefinition | None = None  # the table whose rows it sends; None for a topic
    topic: str | None = None  # the topic whose messages it sends; None for a table
    condition: Condition | None = None  # which rows; None for all
    fields: tuple[str, ...] = ()  # the columns that its messages have
    on: tuple[Event, ...] = ("insert",)  # which changes of rows are messages
    # the column of whose values each has an order of its own; None for the key of the row, or of the message
    partition_by: str | None = None
    order_by: tuple[str, ...] = ()  # the columns by which the rows come with which it begins, before their key
    # where a new one begins: with the present rows or messages, or with new ones
    start: Start = "beginning"
    on_failure: OnFailure = "halt"  # the policy for a message that fails, and for those behind it
    # when a message that failed is tried again, and after how many attempts it counts as failed for good
    retry: Retry = RETRY
    batch: int | None = None  # how many messages one call takes at most; None for one, by itself
    linger: timedelta = timedelta(0)  # how long a batch waits until it is full
    parallelism: int = 1  # how many messages, each of another key, are under way at once
    timeout: timedelta | None = None  # how long an attempt may take; None for as long as it takes
    keep_for: timedelta = timedelta(0)  # how long messages are kept at least, so that they can be sent again
    version: int = 1  # of the declaration: one with a lower version changes nothing

    def __post_init__(self) -> None:
        self._check_words()
        self._check_numbers()
        if self.definition is not None and self.partition_by in self.definition.ciphertext_columns:
            self._refuse(f"partition_by: {self.partition_by} is encrypted, so that equal values are not known")

    @property
    def reader(self) -> str:
        """The name of its reader of the change feed, and of its interest in its table."""
        return reader_name(self.name)

    @property
    def source(self) -> str:
        return f"topic {self.topic}" if self.definition is None else self.definition.name

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for event in EVENTS if event in self.on for kind in _KINDS[event])

    def spec(self) -> str:
        return json.dumps(
            {
                "on": [] if self.definition is None else list(self.on),
                "filter": None if self.condition is None else signature(self.condition),
                "fields": list(self.fields),
                "partition_by": self.partition_by,
                "order_by": list(self.order_by),
                "on_failure": self.on_failure,
                "batch": self.batch,
                "parallelism": self.parallelism,
            }
        )

    # ----- checks

    def _check_words(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            self._refuse(f"its name has to have 1 to {_LONGEST_NAME} printable characters")
        on: Any = self.on
        if not isinstance(on, tuple) or not on or any(on.count(one) > 1 or one not in EVENTS for one in on):
            self._refuse(f"on= takes some of {', '.join(EVENTS)}, each once, not {self.on!r}")
        for word, given, known in (
            ("on_failure", self.on_failure, get_args(OnFailure)),
            ("start", self.start, get_args(Start)),
        ):
            if given not in known:
                self._refuse(f"{word} is one of {', '.join(known)}, not {given!r}")
        if self.on_failure == "halt_key" and "truncate" in self.on:
            self._refuse(
                "a truncate is of all keys, and cannot wait for one of them",
                'Use on_failure="halt" or "park", or leave truncate out of on=.',
            )
        names = () if self.definition is None else tuple(column.name for column in self.definition.columns)
        for word, columns in (
            ("fields", self.fields),
            ("partition_by", () if self.partition_by is None else (self.partition_by,)),
            ("order_by", self.order_by),
        ):
            if not isinstance(columns, tuple):
                self._refuse(f"{word} is a tuple of fields, not a {type(columns).__name__}")
            for column in columns:
                if column not in names:
                    self._refuse(f"{word}: {self.source} has no field {column!r}")
        self._check_order()

    def _check_order(self) -> None:
        if not self.order_by or self.definition is None:
            return
        if "insert" not in self.on:
            self._refuse("order_by is of the rows that there are, which are messages only with on=('insert', …)")
        if len(set(self.order_by)) < len(self.order_by):
            self._refuse(f"order_by names a column twice: {', '.join(self.order_by)}")
        for name in self.order_by:
            column = self.definition.column(name)
            if column.optional:
                self._refuse(f"order_by: {name} may be None, which has no place in an order", "Order by other columns.")
            if column.order_obstacle:
                self._refuse(f"order_by: {name} {column.order_obstacle} and has no order", "Order by other columns.")

    def _check_numbers(self) -> None:
        given: Any
        for word, given in (("batch", self.batch if self.batch is not None else 1), ("parallelism", self.parallelism)):
            if type(given) is not int or not 1 <= given <= _MOST:
                self._refuse(f"{word} is a whole number from 1 to {_MOST}, not {given!r}")
        if type(given := self.version) is not int or not 1 <= given < 2**31:
            self._refuse(f"version is a whole number from 1 to {2**31 - 1:,}, not {given!r}")
        for word, given, longest, said in (
            ("linger", self.linger, _LONGEST_LINGER, "a minute"),
            ("keep_for", self.keep_for, _LONGEST_KEPT, "a year"),
        ):
            if not isinstance(given, timedelta) or not timedelta(0) <= given <= longest:
                self._refuse(f"{word} is a timedelta of up to {said}, not {given!r}")
        if self.linger and self.batch is None:
            self._refuse("linger is of use with batch= only")
        if self.parallelism > 1 and self.batch is not None:
            self._refuse("parallelism and batch exclude each other", "A batch is one call for messages of many keys.")
        given = self.timeout
        if given is not None and (not isinstance(given, timedelta) or not timedelta(0) < given <= _LONGEST_KEPT):
            self._refuse(f"timeout is a timedelta greater than 0, up to a year, not {given!r}")
        if not isinstance(given := self.retry, Retry):
            self._refuse(f"retry is a Retry, not {given!r}")

    def _refuse(self, reason: str, fix: str = "") -> None:
        raise DeclarationError(f"Outbox {self.name!r}: {reason}.", fix=fix)


def reader_name(outbox: str) -> str:
    return f"{_READER}{outbox}"


def outbox_read(reader: str) -> str | None:
    """The outbox whose reader has this name; None if it is none of an outbox."""
    return reader.removeprefix(_READER) if reader.startswith(_READER) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCriteria:
    """The captured changes that are messages of one declaration."""

    condition: Condition | None = None  # which rows; None if the triggers say that exactly
    kinds: tuple[str, ...] = ()  # which kinds of changes are messages
    # the columns whose change makes an update a message; empty if the triggers see to that
    fields: tuple[str, ...] = ()

    def text(self) -> str:
        """Equal for equal criteria."""
        condition = None if self.condition is None else signature(self.condition)
        return json.dumps({"condition": condition, "kinds": sorted(self.kinds), "fields": list(self.fields)})

    @classmethod
    def parse(cls, text: str) -> MessageCriteria:
        said = json.loads(text)
        condition = None if said["condition"] is None else read_signature(said["condition"])
        return cls(condition=condition, kinds=tuple(said["kinds"]), fields=tuple(said["fields"]))
