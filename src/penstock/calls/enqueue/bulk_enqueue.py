"""Jobs that are alike: any number of them, made one by one while they are stored.

Owns what is kept of them until that is committed: their ids, which their caller is given, and their arguments packed
small where the transaction may have to store them again; and that a transaction that goes on has all of them or none.
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
_FEW = 99  # jobs; to make them before the first is stored is quicker than a savepoint


class NotMade(Exception):
    """What makes jobs has raised.

    What it raised would mislead on its way to its caller: as if the database were lost, or all should be tried again.
    """


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
        self._ids = list[JobId]()
        self._packed = list[bytes]()
        self._last = list[NewJob]()
        self.first: NewJob | None = None
        self._failed: Exception | None = None

    def __iter__(self) -> Iterator[NewJob]:
        if self.first is not None:
            for number, piece in enumerate(self._packed):
                yield from self._unpacked(self.first, number, piece)
            yield from tuple(self._last)
        yield from self._made()

    async def store(self, transaction: Transaction, *, goes_on: bool) -> None:
        """Store all in a transaction.

        Args:
            transaction: The transaction.
            goes_on: Whether it may be committed though this has raised: then it has none of them.

        Raises:
            NotMade: Some could not be made; `ids` raises what kept them from it.
        """
        if not goes_on or self._are_few():
            await transaction.enqueue(self)
            return
        async with transaction.branch():
            await transaction.enqueue(self)

    def ids(self) -> list[JobId]:
        """The ids of all, in order; raises what making them has raised."""
        if self._failed is not None:
            raise self._failed
        return self._ids + job_ids(job.id for job in self._last)

    def _are_few(self) -> bool:
        """Whether the first few are all; then nothing will be stored that has to be undone."""
        return sum(1 for _ in islice(self._made(), _FEW + 1)) <= _FEW

    def _made(self) -> Iterator[NewJob]:
        """Those that were not made yet."""
        for job in iter(self._next, None):
            if self.first is None:
                self.first = job
            self._last.append(job)
            if len(self._last) == _PIECE:
                self._pack()
            yield job

    def _next(self) -> NewJob | None:
        """The next one that is made; once that has failed, it fails each time, as generators that raise then end."""
        if self._failed is None:
            try:
                return next(self._left, None)
            except Exception as error:  # noqa: BLE001 - it is told to the caller as it is
                self._failed = error
        raise NotMade from self._failed

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


def gone_through(given: Iterable[Any]) -> Iterable[Any]:
    """What is given for many calls, all asked for here: in the thread of their caller, where it may wait."""
    if isinstance(given, list | tuple) or not isinstance(given, Iterable):
        return given
    return [dict(one) if isinstance(one, Mapping) else one for one in given]  # as some give the same one again
