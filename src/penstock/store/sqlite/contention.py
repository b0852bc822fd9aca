"""Takes the write lock of a SQLite file, which other processes may have.

SQLite has no queue for it: the first to try while it is free gets it. A program that writes all the time leaves it free
for some microseconds between two commits. A few tries in a second all miss these. So callers that have waited for a
while try more often than new ones, and get it first.
"""

from __future__ import annotations

import sqlite3

from penstock.clock import Clock
from penstock.store.sqlite.errors import is_busy

_FIRST, _LONGEST, _EAGER = 0.0005, 0.02, 0.001  # seconds
_PATIENT_FOR, _EAGER_FOR = 0.2, 0.5
_IN_A_ROW = 20


async def begin_write(connection: sqlite3.Connection, clock: Clock, wait: float) -> bool:
    """Begin a transaction that writes; whether others had the lock.

    Raises:
        sqlite3.Error: They had it for longer than `wait` seconds, or it failed for another reason.
    """
    begun, waited, tries = clock.monotonic(), 0.0, 0
    while not _begins(connection, in_a_row(waited), give_up=waited > wait):
        tries += 1
        await clock.sleep(pause_after(tries, waited) * (0.5 + clock.random()))
        waited = clock.monotonic() - begun
    return tries > 0


def pause_after(tries: int, waited: float) -> float:
    """Seconds until the next try, on average, after so many tries, the first of them `waited` seconds ago."""
    return min(_FIRST * 1.5 ** (tries - 1), _LONGEST) if waited < _PATIENT_FOR else _EAGER


def in_a_row(waited: float) -> int:
    """The number of tries without a pause; one takes some microseconds."""
    return 1 if waited < _EAGER_FOR else _IN_A_ROW


def _begins(connection: sqlite3.Connection, tries: int, *, give_up: bool) -> bool:
    for left in reversed(range(tries)):
        try:
            connection.execute("begin immediate")
        except sqlite3.Error as error:
            if not is_busy(error) or (give_up and not left):
                raise
        else:
            return True
    return False
