"""Leases that are extended beside the database, while something keeps its write lock.

Owns a small file for each of them, such as ``app.db-lease-7``, with the end of the lease as text. It is there only
while it is needed. All processes are on one machine, so a rescuer sees what an owner has written there.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from penstock.errors import DatabaseUnavailable
from penstock.store.sqlite.dialect import encode_datetime


class Extensions:
    """The files beside one database."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._written: set[int] = set()

    def end(self, lease: int) -> datetime | None:
        """The time until which a lease is extended; None if it is not."""
        try:
            return datetime.fromisoformat(self._file(lease).read_text())
        except (FileNotFoundError, ValueError):  # no text: the machine has died since, and the worker with it
            return None
        except OSError as error:
            raise _unavailable(error) from error

    def write(self, lease: int, end: datetime) -> None:
        """Extend a lease, for all to see at once or not at all."""
        file = self._file(lease)
        draft = file.with_name(f"{file.name}-new")
        try:
            draft.write_text(encode_datetime(end))
            draft.replace(file)
        except OSError as error:
            raise _unavailable(error) from error
        self._written.add(lease)

    def forget(self, lease: int) -> None:
        """Remove this process's file of a lease: the database knows of its end, or it has none."""
        if lease in self._written:
            self.remove(lease)
            self._written.discard(lease)

    def remove(self, lease: int) -> None:
        """Remove the file of a lease, of any process."""
        try:
            self._file(lease).unlink(missing_ok=True)
        except OSError as error:
            raise _unavailable(error) from error

    def _file(self, lease: int) -> Path:
        return Path(f"{os.path.realpath(self._database)}-lease-{lease}")


def _unavailable(error: OSError) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"A lease file beside the database cannot be written: {error}.", fix="Check the folder of the database."
    )
