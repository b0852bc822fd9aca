"""Jobs that are alike: any number of them, made one by one while they are stored.

Owns what is kept of them until that is committed: their ids, which their caller is given, and their arguments packed
small where the transaction may have to store them again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from penstock.jobs.job import JobId, NewJob, job_ids, job_uuid

_PIECE, _QUICKLY = 1_000, 1


class JobsAlike:
    """Jobs that are alike: each time they are gone through they are the same, though each is made but once.

    Args:
        jobs: What makes them.
        again: Whether they may be gone through more than once, which is when their transaction is tried again.

    Attributes:
        first: The first of them; None as long as there is none.
    """

    __slots__ = ("_again", "_failed", "_ids", "_last", "_left", "_packed", "first")

    def __init__(self, jobs: Iterable[NewJob], *, again: bool) -> None:
        self._left, self._again = iter(jobs), again
        self._failed: Exception | None = None
        self._ids = list[JobId]()
        self._packed = list[bytes]()
        self._last = list[NewJob]()
        self.first: NewJob | None = None

    def __iter__(self) -> Iterator[NewJob]:
        if self.first is not None:
            for number, piece in enumerate(self._packed):
                yield from self._unpacked(self.first, number, piece)
            yield from tuple(self._last)
        for job in iter(self._next, None):
            if self.first is None:
                self.first = job
            self._last.append(job)
            if len(self._last) == _PIECE:
                self._pack()
            yield job

    def ids(self) -> list[JobId]:
        """The ids of all that were made so far, in order."""
        return self._ids + job_ids(job.id for job in self._last)

    def _next(self) -> NewJob | None:
        """The next one that is made; once that has failed, it fails each time, as generators that raise then end."""
        if self._failed is not None:
            raise self._failed
        try:
            return next(self._left, None)
        except Exception as error:
            self._failed = error
            raise

    def _pack(self) -> None:
        self._ids += job_ids(job.id for job in self._last)
        if self._again:
            # JSON text has no line breaks
            text = "\n".join(job.args for job in self._last)
            self._packed.append(zlib.compress(text.encode(), _QUICKLY))
        self._last.clear()

    def _unpacked(self, alike: NewJob, number: int, piece: bytes) -> Iterator[NewJob]:
        ids = self._ids[number * _PIECE : (number + 1) * _PIECE]
        texts = zlib.decompress(piece).decode().split("\n")
        for text, args in zip(ids, texts, strict=True):
            yield replace(alike, id=job_uuid(text), args=args)
