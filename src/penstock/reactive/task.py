"""A reactive task as declared, and as stored: its rows, the changes that call for work, and the options of the work.

Owns the declaration and that of its circuit breaker, their checks at the door, and the text in which planners of all
processes read it. Leaves tracing filters to `tracing`, and what becomes of a change to `planning`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, get_args

from penstock.errors import DeclarationError
from penstock.jobs.order import PRIORITIES
from penstock.reactive.expression import Condition, Expression
from penstock.reactive.expression import fields as fields_of
from penstock.reactive.signature import read_signature, signature
from penstock.reactive.tracing import Watch
from penstock.schema.fields import Kind
from penstock.schema.table import TableDefinition

Cause = Literal["enter", "change", "leave", "delete"]
Change = Literal["enter", "change", "leave", "delete", "manual", "reconcile"]
Cleanup = Literal["source_deleted", "source_deleted_or_no_longer_matching", "never"]
OnVersionChange = Literal["none", "reprocess_failed", "reprocess_all"]

CAUSES: tuple[Cause, ...] = get_args(Cause)
DEFAULT_ON: tuple[Cause, ...] = ("enter", "change")
_LONGEST_NAME = 100
LONGEST_WAIT = timedelta(days=366)
_MOST_HISTORY, _MOST_FAILURES = 100, 1000
_INTEREST = "task:"
_SPELLED = {"resets": "reset_retries_on_data_change", "reconciles": "reconcile_on_trigger_change"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactiveTask:
    """A reactive task as declared."""

    name: str  # by which it is kept; a task of another name is another task
    definition: TableDefinition  # the table
    condition: Condition | None = None  # which rows it is about; None for all
    watch: Watch | None = None  # the values whose change counts; None for any
    on: tuple[Cause, ...] = DEFAULT_ON  # which changes it wants to hear of
    debounce: timedelta = timedelta(0)  # for how long a row has to be left alone before it is run
    max_wait: timedelta | None = None  # for how long at most a run is put off by further changes
    run_at: str | None = None  # the column that says when it is run; None for at once
    key: str | None = None  # the column of whose values one row is run at a time, in order; None for no such thing
    pool: str  # the pool of its jobs
    priority: int = 0  # the priority of its jobs
    history: int = 5  # how many runs before the last one are kept with each row
    cleanup: Cleanup = "source_deleted"  # when the record of a row is forgotten, `keep_for` after
    keep_for: timedelta = timedelta(days=1)  # see `cleanup`
    version: int = 1  # of its handler
    on_version_change: OnVersionChange = "none"  # the rows that run again when a higher version is declared
    resets: bool = True  # whether a change resets the count of attempts
    reconciles: bool = True  # whether rows are looked at again when `condition` or `watch` have changed

    def __post_init__(self) -> None:
        self._check_words()
        self._check_times()
        for word, least, most in (
            ("priority", PRIORITIES[0], PRIORITIES[-1]),
            ("history", 0, _MOST_HISTORY),
            ("version", 0, 2**31 - 1),
        ):
            value: Any = getattr(self, word)
            if type(value) is not int or not least <= value <= most:
                self._refuse(f"{word} is an integer from {least:,} to {most:,}, not {value!r}")
        for word in ("resets", "reconciles"):
            if type(value := getattr(self, word)) is not bool:
                self._refuse(f"{_SPELLED[word]} is True or False, not {value!r}")
        for word in ("run_at", "key"):
            column: Any = getattr(self, word)
            if column is not None and (not isinstance(column, str) or column not in self.definition.positions):
                self._refuse(f"{word} is a column, and the table has no column {column!r}")
        if self.key in self.definition.ciphertext_columns:
            self._refuse(f"key: {self.key} is encrypted, so that equal values are not known")
        if self.run_at is not None and self.definition.column(self.run_at).kind is not Kind.DATETIME:
            self._refuse(f"run_at: {self.run_at} is no column of points in time")

    def _check_words(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            self._refuse(f"name is a text of 1 to {_LONGEST_NAME} printable characters")
        on: Any = self.on
        if not isinstance(on, tuple) or not on or any(on.count(one) > 1 or one not in CAUSES for one in on):
            self._refuse(f"on is a tuple of {', '.join(map(repr, CAUSES))}, each once, not {on!r}")
        for word, choices in (("cleanup", get_args(Cleanup)), ("on_version_change", get_args(OnVersionChange))):
            if getattr(self, word) not in choices:
                self._refuse(f"{word} is one of {', '.join(map(repr, choices))}, not {getattr(self, word)!r}")

    def _check_times(self) -> None:
        for word in ("debounce", "max_wait", "keep_for"):
            value: Any = getattr(self, word)
            if value is None and word == "max_wait":
                continue
            if not (isinstance(value, timedelta) and timedelta(0) <= value <= LONGEST_WAIT):
                self._refuse(f"{word} is a timedelta from 0 to a year, not {value!r}")
        if self.max_wait is not None and not self.debounce:
            self._refuse("max_wait is of use with debounce only")
        if self.max_wait is not None and self.max_wait < self.debounce:
            self._refuse("max_wait is shorter than debounce")

    def _refuse(self, why: str) -> None:
        raise DeclarationError(f"Reactive task {self.name!r}: {why}.")

    @property
    def wants_row(self) -> bool:
        """Whether rows are captured whole, as handlers are given rows that are gone."""
        return not {"leave", "delete"}.isdisjoint(self.on)

    @property
    def signature(self) -> str:
        """Text that differs if rows have to be looked at again."""
        condition = "" if self.condition is None else signature(self.condition)
        watch = "" if self.watch is None else self.watch.signature
        said = [self.definition.name, condition, watch, self.run_at, sorted(self.on)]
        key = self.definition.key
        return json.dumps(said if len(key) == 1 else [*said, key])  # rows of another key are other rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """The part of a task that all planners need, whichever program they run in."""

    table: str  # the table
    key: tuple[str, ...]  # the columns that tell its rows apart
    on: tuple[Cause, ...]
    exact: bool  # whether triggers capture exactly the declared changes
    filter: str | None  # the filter as `reactive.signature` writes it; None for none
    watch: tuple[str, ...] | None  # the watched values, in the same form; None for any
    debounce: float  # in seconds
    max_wait: float | None  # in seconds, or None
    run_at: str | None
    partition: str | None  # the column of whose values one row is run at a time
    cleanup: Cleanup
    keep_for: float  # in seconds
    interest: str = ""  # the digest of its interest
    partition_kind: str | None = None  # the kind of that column
    reconciles: bool = True  # whether rows that are older than the declaration are caught up with

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> TaskSpec:
        """A spec from its text. Fields that another version has written are left out."""
        given = json.loads(text)
        known = {field.name: given[field.name] for field in fields(cls) if field.name in given}
        for name in ("key", "on", "watch"):
            known[name] = None if known[name] is None else tuple(known[name])
        return cls(**known)

    def condition(self) -> Condition | None:
        return None if self.filter is None else read_signature(self.filter)

    def expressions(self) -> tuple[Expression, ...] | None:
        return None if self.watch is None else tuple(map(read_signature, self.watch))


def spec_of(task: ReactiveTask, *, exact: bool, interest: str = "") -> TaskSpec:
    return TaskSpec(
        table=task.definition.name,
        key=task.definition.key,
        on=task.on,
        exact=exact,
        filter=None if task.condition is None else signature(task.condition),
        watch=None if task.watch is None else tuple(map(signature, task.watch.expressions)),
        debounce=task.debounce.total_seconds(),
        max_wait=None if task.max_wait is None else task.max_wait.total_seconds(),
        run_at=task.run_at,
        partition=task.key,
        cleanup=task.cleanup,
        keep_for=task.keep_for.total_seconds(),
        interest=interest,
        partition_kind=None if task.key is None else task.definition.column(task.key).kind.value,
        reconciles=task.reconciles,
    )


def interest_name(task: str) -> str:
    return f"{_INTEREST}{task}"


@lru_cache(maxsize=1024)  # it is asked for each run
def kinds_of(expressions: tuple[Expression, ...]) -> Mapping[str, Kind]:
    return {name: kind for one in expressions for name, kind in fields_of(one).items()}


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Holds a reactive task after so many failed attempts in a time, counted on all machines together.

    While it is open no run of the task starts, and none uses an attempt. When that time is over, each process that
    runs the task tries one run first: if that fails, the breaker opens again. If not, all go on.

    Args:
        failures: The number of failed attempts that opens it, from 1 to 1000.
        within: The time in which they have to fall.
        open_for: The time for which it stays open.

    Raises:
        DeclarationError: A value is out of its bounds.
    """

    failures: int = 5
    within: timedelta = timedelta(minutes=1)
    open_for: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        if type(self.failures) is not int or not 1 <= self.failures <= _MOST_FAILURES:
            raise DeclarationError(f"CircuitBreaker: failures is from 1 to {_MOST_FAILURES}, not {self.failures!r}.")
        for word in ("within", "open_for"):
            given: object = getattr(self, word)
            if not isinstance(given, timedelta) or not timedelta(0) < given <= LONGEST_WAIT:
                raise DeclarationError(f"CircuitBreaker: {word} is a timedelta of up to a year, not {given!r}.")

    def opens(self, failed: Sequence[datetime]) -> datetime | None:
        """The time until which it is open after attempts failed at these times; None if it is not."""
        last = sorted(failed)[-self.failures :]
        if len(last) < self.failures or last[-1] - last[0] > self.within:
            return None
        return last[-1] + self.open_for
