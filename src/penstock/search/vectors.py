"""Vectors: their index as a table declares it, their stored form, and the score of a row.

Owns what a vector is, for all writers: numbers whose length is that of the index, finite, and not all zero. Its stored
form is the vector of length one in its direction, as 32-bit floats, so a score is a sum of products. Python computes
the scores of the rows that are returned, so they are equal on all stores.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from math import hypot, inf
from operator import mul
from sys import float_info
from typing import Any, Generic, TypeVar

from pydantic_core import from_json

from penstock.dataclass import dataclass
from penstock.errors import DeclarationError, ValueInvalid
from penstock.search.index import ColumnIndex

VERSION = "2"  # of the stored form
_DECIMALS = 6
MIN_DIMENSIONS, MAX_DIMENSIONS = 2, 4096

T = TypeVar("T")


class VectorIndex(ColumnIndex):
    """An index over one column of vectors, such as embeddings of texts, declared as a class attribute.

    Rows are found by the direction of their vectors (cosine similarity), and by the values of the filters.

    Args:
        column: Name of the field with the vectors: a `list[float]`, or a `list[float] | None`.
        dimensions: The length of each vector, from 2 to 4,096.
        filters: Names of at most 16 other fields. A search may ask for values of each. None by default.

    Raises:
        DeclarationError: At import, if the length cannot be, or a field does not exist, is named twice, holds no
            numbers, or cannot be compared; see `Table`.
    """

    _example = 'VectorIndex("embedding", dimensions=1536)'
    _taken, _taken_for = "limit", "how many rows are found"

    def __init__(self, column: str, *, dimensions: int, filters: Iterable[str] = ()) -> None:
        super().__init__(column, filters)
        given: Any = dimensions
        if type(given) is not int or not MIN_DIMENSIONS <= dimensions <= MAX_DIMENSIONS:
            raise DeclarationError(
                f"VectorIndex({column!r}): dimensions are {given!r}.",
                fix=f"Pass the length of the vectors, from {MIN_DIMENSIONS} to {MAX_DIMENSIONS:,}.",
            )
        self.dimensions = dimensions

    def __get__(self, row: object, table: type[T]) -> VectorsOf[T]:
        return VectorsOf(table, self)


@dataclass(frozen=True, slots=True)
class VectorsOf(Generic[T]):
    """The vector index of a table, as ``Message.by_meaning`` gives it."""

    table: type[T]
    index: VectorIndex


def unit_vector(where: str, vector: Sequence[float], dimensions: int) -> tuple[float, ...]:
    """The vector of length one in the direction of another one.

    Raises:
        ValueInvalid: It has another length than `dimensions`, NaN or an infinity, or only zeros, or is no vector.
    """
    given: Any = vector
    is_list = isinstance(given, list | tuple)
    if is_list and len(vector) != dimensions:
        raise ValueInvalid(
            f"{where}: this vector has {len(vector)} dimensions, and its index {dimensions}.",
            fix="Use the embedding model that the index is declared for, or declare its dimensions.",
            convex="VectorDimensionsMismatch",
        )
    if not is_list or not all(type(one) in {float, int} for one in vector):
        raise ValueInvalid(f"{where}: a vector is a list of floats.", fix="Pass vector.tolist() of an array of numpy.")
    length = _length(vector)
    if not length < inf:
        raise ValueInvalid(f"{where}: this vector has NaN, an infinity, or a number that is too large.")
    if length < float_info.min:  # numbers of so few bits have no direction that could be told
        raise ValueInvalid(
            f"{where}: this vector has only zeros, or nearly so, and no direction.",
            fix="Store None where there is no embedding.",
        )
    return tuple(one / length for one in vector)


def read_vector(stored: Any, dimensions: int) -> tuple[float, ...] | None:
    """The vector of length one that any program has stored, as JSON or an array; None if it is no vector of the index.

    A row without such a vector is in no index.
    """
    try:
        values = from_json(stored) if isinstance(stored, str | bytes) else stored
        return unit_vector("", [float(one) if isinstance(one, Decimal) else one for one in values], dimensions)
    except (TypeError, ValueError, ValueInvalid):
        return None


def pack(vector: Sequence[float]) -> bytes:
    """A vector as 32-bit floats, the least byte first."""
    return struct.pack(f"<{len(vector)}f", *vector)


def unpack(packed: bytes) -> tuple[float, ...]:
    """The floats of a packed vector."""
    return struct.unpack(f"<{len(packed) // 4}f", packed)


def scorer(vector: Sequence[float]) -> Callable[[bytes], float]:
    """A function that gives the score of packed vectors, from -1 to 1, with the decimals that 32-bit floats have."""
    unpack = struct.Struct(f"<{len(vector)}f").unpack
    return lambda packed: round(sum(map(mul, vector, unpack(packed))), _DECIMALS)


def _length(vector: Sequence[float]) -> float:
    try:
        return hypot(*vector)
    except OverflowError:  # an integer that is no float
        return inf
