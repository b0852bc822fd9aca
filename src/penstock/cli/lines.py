"""JSON lines as `penstock import` reads them: numbered, in pieces that are stored together.

Owns what is said of a line that cannot be taken. Leaves the form of a line to `documents`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from penstock.cli.documents import Documents
from penstock.errors import ConfigError, DataError, InputError, ValueInvalid

PIECE_ROWS = 1000
_PIECE_BYTES = 1024 * 1024
_LONGEST_LINE = 64 * 1024 * 1024
_MARK = b"\xef\xbb\xbf"  # with which some programs begin a text in UTF-8


@dataclass
class Piece:
    """Rows that are stored together, and the numbers of their lines.

    Attributes:
        size: Bytes of its lines.
    """

    rows: list[list[Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    size: int = 0

    def blame(self, error: DataError | InputError) -> Exception:
        """An error of storing it, as one of the line that caused it, if that is known."""
        place = error.facts.get("row")
        return error if place is None else LineRefused(self.numbers[place], error.what)


class LineRefused(ValueInvalid):
    """A line that cannot be taken."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number:,}: {why}", line=number)


class Lines:
    """The lines of a file or of stdin.

    Args:
        name: Of the file; ``-`` for stdin.
        stream: What is read.

    Attributes:
        size: Bytes of the file; None if it is no file.
    """

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self._stream = stream
        self._begun = False
        self.size = Path(name).stat().st_size if name != "-" and stream.seekable() else None

    def pieces(self, documents: Documents) -> Iterator[Piece]:
        """All rows, in pieces of moderate size; anew each time.

        Raises:
            LineRefused: A line is no document of the table.
            ConfigError: They were read before, and stdin cannot be read again.
        """
        self._rewind()
        piece = Piece()
        for number, line in self._numbered():
            try:
                piece.rows.append(documents.row(line))
            except InputError as error:
                raise LineRefused(number, error.what) from error
            piece.numbers.append(number)
            piece.size += len(line)
            if len(piece.rows) == PIECE_ROWS or piece.size > _PIECE_BYTES:
                yield piece
                piece = Piece()
        if piece.rows:
            yield piece

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        """Lines that are not blank, with their numbers."""
        number = 0
        while line := self._stream.readline(_LONGEST_LINE):
            number += 1
            if len(line) == _LONGEST_LINE:
                raise LineRefused(number, f"it is longer than {_LONGEST_LINE:,} bytes.")
            if number == 1:
                line = line.removeprefix(_MARK)
            if line.strip():
                yield number, line

    def _rewind(self) -> None:
        if self._begun:
            if not self._stream.seekable():
                raise ConfigError(
                    "Another process changed the table meanwhile, and stdin cannot be read again.",
                    fix="Import from a file.",
                )
            self._stream.seek(0)
        self._begun = True


def open_lines(name: str) -> BinaryIO:
    """A file to read.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}.") from None
