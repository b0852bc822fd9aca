"""Rows as COPY takes them in binary: written here when many rows are alike, whose equal part is then written once.

Owns the format of PostgreSQL (see its documentation of COPY) for the types of the columns that jobs have.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, and nothing more in the header
_END = struct.pack(">h", -1)
_NULL = struct.pack(">i", -1)
_PIECE_BYTES = 64 * 1024
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

Write = Callable[[Any], bytes]


def _text(value: str) -> bytes:
    return value.encode()


def _time(value: datetime) -> bytes:
    return BIGINT((value - _EPOCH) // timedelta.resolution)


TEXT: Write = _text
TIME: Write = _time
SMALLINT: Write = struct.Struct(">h").pack
INTEGER: Write = struct.Struct(">i").pack
BIGINT: Write = struct.Struct(">q").pack
BOOLEAN: Write = struct.Struct(">?").pack


def count_of(columns: Sequence[str]) -> bytes:
    """The beginning of each row: its number of columns."""
    return struct.pack(">h", len(columns))


def fields(values: Mapping[str, Any], types: Mapping[str, Write]) -> bytes:
    """Columns of a row, in the order of the values."""
    return b"".join(_NULL if value is None else field(types[name](value)) for name, value in values.items())


def field(value: bytes) -> bytes:
    """One column of a row."""
    return len(value).to_bytes(4) + value


def pieces(rows: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes to send for these rows, in pieces that are not too small."""
    piece, size = [_HEADER], 0
    for row in rows:
        piece.append(row)
        size += len(row)
        if size >= _PIECE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    yield b"".join([*piece, _END])
