"""The records of a workflow run: one for each call that has ended, and for each other thing that its body learned.

Owns the values. `history` compares them with what the body does; the store keeps them under the run's lease.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, fields
from datetime import datetime
from hashlib import blake2b
from typing import Any
from uuid import UUID

from penstock.dataclass import dataclass

BEGINNING = 0  # the number of the record with which a run begins
MOST_RECORDS = 10_000  # of one run
MOST_BYTES = 16 * 1024 * 1024  # of the outcomes and shown arguments of one run
LONGEST_ARGUMENTS = 2_000  # characters that are shown with a record; their digest is of all


class RecordKind(enum.Enum):
    """The subject of a record."""

    BEGIN = "begin"
    QUERY = "query"
    MUTATION = "mutation"
    ACTION = "action"
    JOB = "job"  # a step that runs as a job of its own: in a pool, or another workflow
    EVENT = "event"  # a wait for an event
    PATCH = "patch"  # a change of the code that the run has taken up
    TIMER = "timer"  # a time that has come
    CANCEL = "cancel"


IS_CALL = frozenset(RecordKind) - {RecordKind.BEGIN, RecordKind.TIMER, RecordKind.CANCEL}
IS_STEP = IS_CALL - {RecordKind.EVENT, RecordKind.PATCH}


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a run.

    Attributes:
        number: The number of its call, from 1; 0 for the beginning; below 0 for what is no call.
        kind: The kind of call; or the beginning, a time, a patch or a cancel.
        place: Its place in the order in which the body learned of it; None as long as it has not.
        at: When that was.
        function: The name of the function that was called, of the events, or of the patch.
        digest: A digest of the arguments.
        args: The arguments as JSON, to be shown: shortened, and without secrets.
        outcome: The result or the error, as `outcome` writes it; None if it is not known yet.
        attempts: Attempts at a step that have begun, if they are counted.
        due_at: When the next attempt begins.
        job: The job that runs the step.
        made_at: When the body made the call.
        learned: The place of what the body had learned last as this was stored.
    """

    number: int
    kind: RecordKind
    place: int | None
    at: datetime
    function: str = ""
    digest: str = ""
    args: str | None = None
    outcome: str | None = None
    attempts: int = 0
    due_at: datetime | None = None
    job: UUID | None = None
    made_at: datetime | None = None
    learned: int | None = None

    def __str__(self) -> str:
        return describe(self.kind, self.function, self.args)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The facts that a run keeps with its first record.

    Attributes:
        life: How often it has begun again with other arguments.
        secret: The secret by which its links are known.
        active: The seconds for which it has run, without its sleep; counted if it has a timeout.
        since: Seconds since 1970 at which it was retried or forked, from where its deadline counts; 0 if it was not.
        tokens: How many tokens of events it had given before it began again.
        seeds: Of a fork the seeds of its random numbers, each with the place from which it does not count any more.
        unread: Facts of a newer release of penstock, to which this one leaves the run.
    """

    life: int = 0
    secret: str = ""
    active: float = 0.0
    since: float = 0.0
    tokens: int = 0
    seeds: Sequence[tuple[int, int]] = ()
    unread: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str | None) -> Beginning:
        """Read it from the outcome of the record."""
        given = json.loads(text or "{}")
        return cls(**{name: given.pop(name) for name in [*given] if name in _OF_BEGINNING}, unread=given)

    def write(self) -> str:
        """The outcome of the record."""
        given = asdict(self)
        return json.dumps(given | given.pop("unread"))


_OF_BEGINNING = {one.name for one in fields(Beginning)} - {"unread"}


def describe(kind: RecordKind, function: str, args: str | None) -> str:
    """A call in one line, for people."""
    shown = f"({args[1:-1]})" if args else ""
    return f"{kind.value} {function}{shown}".rstrip()


def digest_of(args: str) -> str:
    """The digest of arguments."""
    return blake2b(args.encode(), digest_size=12).hexdigest()
