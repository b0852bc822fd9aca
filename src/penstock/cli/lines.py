"""Rows in files: JSON lines, a JSON array, or CSV, in pieces of moderate size."""

from __future__ import annotations

import contextlib
import csv
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json, to_json
from rich import progress

from penstock.cli.output import make_console
from penstock.dataclass import dataclass
from penstock.errors import ConfigError, DataError, InputError, ValueInvalid
from penstock.store.sql.statements import TableStatements
from penstock.transaction.rows import load_rows
from penstock.transaction.transaction import Transaction

PIECE_ROWS = 1000
_PIECE_BYTES = 1024 * 1024
_LONGEST_LINE = 64 * 1024 * 1024
_LONGEST_ARRAY = 256 * 1024 * 1024
_MARK = b"\xef\xbb\xbf"  # with which some programs begin a text in UTF-8


Read = Callable[[bytes], list[Any]]


@dataclass
class Piece:
    rows: list[list[Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    size: int = 0


class LineRefused(ValueInvalid):
    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number:,}: {why}", line=number)


class Lines:
    """The rows of a file, each as a line of JSON.

    Args:
        stream: The file, or stdin.
        size: Its size in bytes, if it is known.
        is_csv: Whether it is CSV with a header. Otherwise an array of JSON is told from JSON lines by its first byte.
    """

    def __init__(self, stream: IO[bytes], size: int | None = None, *, is_csv: bool = False) -> None:
        self._stream = stream
        self._begun = False
        self.size = size
        self.is_csv = is_csv

    def pieces(self, read: Read, refuse: Callable[[LineRefused], None] | None = None) -> Iterator[Piece]:
        """Read all rows in pieces of moderate size; each call starts at the beginning.

        Args:
            read: Makes a row of a line.
            refuse: Called with each line that is no row, which is passed over. By default the first one is raised.
        """
        self._rewind()
        piece = Piece()
        for number, line in self._number_rows():
            try:
                piece.rows.append(read(line))
            except InputError as error:
                refused = LineRefused(number, error.what)
                if refuse is None:
                    raise refused from error
                refuse(refused)
                continue
            piece.numbers.append(number)
            piece.size += len(line)
            if len(piece.rows) == PIECE_ROWS or piece.size > _PIECE_BYTES:
                yield piece
                piece = Piece()
        if piece.rows:
            yield piece

    def _number_rows(self) -> Iterator[tuple[int, bytes]]:
        if self.is_csv:
            return self._number_records()
        lines = self._number_lines()
        first = next(lines, None)
        if first is not None and first[1].lstrip().startswith(b"["):
            return self._number_items(first[1])
        return iter(()) if first is None else chain((first,), lines)

    def _number_records(self) -> Iterator[tuple[int, bytes]]:
        """Records of CSV as objects of texts, with the number of the line where each ends."""
        text = io.TextIOWrapper(self._stream, "utf-8-sig", newline="")
        reader = csv.DictReader(text, strict=True)
        try:
            names = reader.fieldnames or ()
            if repeated := sorted({name for name in names if names.count(name) > 1}):
                raise LineRefused(1, f"the header has the column {repeated[0]!r} more than once.")
            for record in reader:
                if None in record or None in record.values():
                    raise LineRefused(reader.line_num, f"it does not have {len(names)} cells, as the header has.")
                yield reader.line_num, to_json(record)
        except csv.Error as error:
            raise LineRefused(reader.reader.line_num, f"{error}.") from error
        except UnicodeDecodeError as error:
            raise InputError(f"It is no UTF-8: {error}.", fix="Write it in UTF-8.") from error
        finally:
            text.detach()

    def _number_items(self, first: bytes) -> Iterator[tuple[int, bytes]]:
        text = first + self._stream.read(_LONGEST_ARRAY)
        if len(text) > _LONGEST_ARRAY:
            raise InputError(
                f"An array of more than {_LONGEST_ARRAY:,} bytes is not read at once.",
                fix="Make it JSON lines, an object on each.",
            )
        try:
            items = from_json(text, allow_inf_nan=False)
        except ValueError as error:
            raise InputError(f"This is not valid JSON: {error}.") from None
        return ((number, to_json(item)) for number, item in enumerate(items, 1))

    def _number_lines(self) -> Iterator[tuple[int, bytes]]:
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


def open_file(name: str) -> IO[bytes]:
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}.") from None


def pass_over(_line: LineRefused) -> None:
    """Pass over a line, which is refused and counted where all are checked."""


async def load_piece(transaction: Transaction, statements: TableStatements, piece: Piece) -> None:
    try:
        await load_rows(transaction, statements, piece.rows)
    except (DataError, InputError) as error:
        if (place := error.facts.get("row")) is None:
            raise
        raise LineRefused(piece.numbers[place], error.what) from error


@contextlib.contextmanager
def show_progress(what: str, total: int | None, *, size: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, where a person looks on; nothing elsewhere. It is moved by what is yielded."""
    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.DownloadColumn() if size else progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        console=make_console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        yield partial(bar.advance, bar.add_task(what, total=total))
