"""Bulk enqueue: any number of jobs of one function, made one by one while they are stored.

Until the commit it keeps their ids for the caller, and their arguments compressed if the transaction may run again. A
transaction that goes on after an error has all of the jobs or none.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from penstock.jobs.job import JobId, NewJob, job_ids, job_uuid
from penstock.transaction.transaction import Transaction

_PIECE, _QUICKLY = 1_000, 1
_FEW = 99  # jobs; making them all before storing the first is quicker than a savepoint


class NotMade(Exception):
    """The caller's iterable has raised.

    Its own error would mislead on its way: as if the database were lost, or the transaction should be tried again.
    """


class BulkEnqueue:
    """Jobs of one function: each iteration gives the same ones (with `again`), and each is made only once."""

    __slots__ = ("_again", "_failed", "_ids", "_last", "_left", "_packed", "first")

    def __init__(self, jobs: Iterable[NewJob], *, again: bool) -> None:
        self._left, self._again = iter(jobs), again
        self._ids = list[JobId]()
        self._packed = list[bytes]()
        self._last = list[NewJob]()
        self.first: NewJob | None = None
        self._failed: Exception | None = None

    def __iter__(self) -> Iterator[NewJob]:
        if self.first is not None:
            for number, piece in enumerate(self._packed):
                yield from self._unpack(self.first, number, piece)
            yield from tuple(self._last)
        yield from self._make_jobs()

    async def store(self, transaction: Transaction, *, goes_on: bool) -> None:
        """Store all in a transaction; if that `goes_on` after an error, it has none of them then."""
        # The first few may be all: these are made before any is stored.
        if not goes_on or sum(1 for _ in islice(self._make_jobs(), _FEW + 1)) <= _FEW:
            await transaction.enqueue(self)
            return
        async with transaction.branch():
            await transaction.enqueue(self)

    def ids(self) -> list[JobId]:
        """The ids of all, in order; raises the error of the iterable."""
        if self._failed is not None:
            raise self._failed
        return self._ids + job_ids(job.id for job in self._last)

    def _make_jobs(self) -> Iterator[NewJob]:
        for job in iter(self._next, None):
            if self.first is None:
                self.first = job
            self._last.append(job)
            if len(self._last) == _PIECE:
                self._pack()
            yield job

    def _next(self) -> NewJob | None:
        """The next job; once the iterable has failed, fail each time, as a generator ends after it raised."""
        if self._failed is None:
            try:
                return next(self._left, None)
            except Exception as error:  # noqa: BLE001 - `ids` raises it as it is
                self._failed = error
        raise NotMade from self._failed

    def _pack(self) -> None:
        self._ids += job_ids(job.id for job in self._last)
        if self._again:
            # JSON text has no line breaks
            text = "\n".join(job.args for job in self._last)
            self._packed.append(zlib.compress(text.encode(), _QUICKLY))
        self._last.clear()

    def _unpack(self, alike: NewJob, number: int, piece: bytes) -> Iterator[NewJob]:
        ids = self._ids[number * _PIECE : (number + 1) * _PIECE]
        texts = zlib.decompress(piece).decode().split("\n")
        for text, args in zip(ids, texts, strict=True):
            yield replace(alike, id=job_uuid(text), args=args)


def exhaust(given: Iterable[Any]) -> Iterable[Any]:
    """Exhaust an iterable here, in the thread of its caller, where it may wait."""
    if isinstance(given, list | tuple) or not isinstance(given, Iterable):
        return given
    # Copies, as some generators give the same mapping again.
    return [dict(one) if isinstance(one, Mapping) else one for one in given]
