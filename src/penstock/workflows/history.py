"""The history of a run: its records, compared with what its body does now.

A body that calls something else than its records say does not fit: nothing of it takes effect, and the run waits for
code that fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from penstock.workflows.record import BEGINNING, IS_CALL, Record, RecordKind, describe


class Mismatch(Exception):
    """The code of a workflow does not fit the history of a run; its text shows both sides."""


class History:
    """The records of one run, as they were when it went on, and new ones."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = dict[int, Record]()
        self.cancel: Record | None = None  # that the body was told of
        for record in records:
            self.note(record)
        placed = [record for record in self._records.values() if record.place is not None]
        self.deliveries = sorted(placed, key=lambda record: record.place or 0)  # in the order in which they were made
        self._highest = max(self._records, default=BEGINNING)
        self._place = max((record.place or 0 for record in placed), default=-1)
        self._learned = max(map(_place_before, self._records.values()), default=-1)
        self.is_copied = all(
            record.learned is None for record in placed
        )  # from another run, and nothing was stored yet

    @property
    def beginning(self) -> Record | None:
        """The record with which it began; None if it has not."""
        return self._records.get(BEGINNING)

    def is_passed(self, place: int) -> bool:
        """Whether the run had learned of a place, and done all that its body does then, as something was stored."""
        return place <= self._learned

    @property
    def open_jobs(self) -> list[UUID]:
        """The jobs of steps whose end the run does not know."""
        return [one.job for one in self._records.values() if one.job is not None and one.place is None]

    def next_place(self) -> int:
        """Take the next place in the order of deliveries."""
        self._place += 1
        return self._place

    def find(self, number: int) -> Record | None:
        """The record of a call."""
        return self._records.get(number)

    def note(self, record: Record) -> None:
        """Add a record, or the outcome of one."""
        self._records[record.number] = record
        if record.kind is RecordKind.CANCEL:
            self.cancel = record

    def note_stored(self, records: Iterable[Record]) -> None:
        """Note that records are stored, by which it is known how far the body has come."""
        self._learned = max(self._learned, *map(_place_before, records))

    def match(self, number: int, kind: RecordKind, function: str, digest: str, args: str | None) -> Record | None:
        """The record of a call that the body makes; None if it is a new one. Without a digest any arguments fit.

        Raises:
            Mismatch: The record is of another call.
        """
        record = self._records.get(number)
        alike = record is None or (record.kind, record.function) == (kind, function)
        if record is None or (alike and (record.digest == digest or "" in {record.digest, digest})):
            return record
        what = "with other arguments" if alike and record.args == args else ""
        raise Mismatch(
            f"call {number} was {record}, and the code now makes {describe(kind, function, args)} {what}".rstrip()
        )

    def takes_patch(self, number: int, name: str, *, replaying: bool) -> bool:
        """Whether a call of ``patched`` is one of new code: its record is there, or nothing came after its place."""
        record = self._records.get(number)
        if record is not None:
            return (record.kind, record.function) == (RecordKind.PATCH, name)
        return not replaying and number > self._highest

    def check_made(self, highest: int) -> None:
        """Check that the body, which has learned all that is recorded, has made all recorded calls again.

        Raises:
            Mismatch: It has made calls up to this number only.
        """
        if (number := min((one for one in self._records if one > highest), default=None)) is not None:
            raise Mismatch(f"call {number} was {self._records[number]}, and the code now does not make it")

    def check_delivery(self, record: Record, open_calls: Iterable[int]) -> None:
        """Check that the body waits for what it learned next.

        Raises:
            Mismatch: It does not make this call any more, or not yet.
        """
        if record.kind in IS_CALL and record.number not in open_calls:
            raise Mismatch(f"call {record.number} was {record}, and the code now does not make it")


def _place_before(record: Record) -> int:
    """The place that the body had learned as a record was stored; if that is not known, the one before its own."""
    return (record.place or 0) - 1 if record.learned is None else record.learned


def split_at(records: Iterable[Record], step: int) -> tuple[list[Record], list[Record]]:
    """The records that stay if a run goes on from a step, and the others.

    Deliveries before the end of that step stay, and so do the other calls that the body had made by then. The order in
    which those ended is one that might have been.
    """
    known = {record.number: record for record in records}
    place = known[step].place
    before = [one for one in known.values() if one.place is not None and (place is None or one.place < place)]
    last = max([step, *(one.number for one in before)])
    kept = {one.number for one in before} | {number for number in known if 0 < number <= last}
    kept.discard(step)
    return [one for one in known.values() if one.number in kept], [
        one for one in known.values() if one.number not in kept
    ]
