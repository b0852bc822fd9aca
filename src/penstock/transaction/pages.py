"""Pages and their cursors. A cursor is a place in one query's order, and refused by any other query.

It is no secret: its holder can read the values of the last row in the columns of that order.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import to_json

from penstock.errors import CursorInvalid, ValueInvalid
from penstock.schema.fields import ENCODERS, PLAIN, Column, Kind
from penstock.schema.index import Index
from penstock.transaction.segments import Segment

T = TypeVar("T")

_MOST = 16_384


class Page(BaseModel, Generic[T]):
    """One page of a query.

    Attributes:
        page: The rows.
        is_done: Whether no row follows.
        continue_cursor: The cursor of the next page. It holds the last row's values in the columns of the query's
            order, and is not encrypted.
    """

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, arbitrary_types_allowed=True
    )

    page: list[T]
    is_done: bool
    continue_cursor: str


def fingerprint(table: str, index: Index | None, segment: Segment, direction: str) -> str:
    text = repr((table, index and index.name, segment, direction))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def encode_cursor(mark: str, values: Sequence[Any] | None) -> str:
    """The cursor after a row with these values in the query's order; None for the beginning."""
    text = to_json([mark, values], bytes_mode="base64", inf_nan_mode="constants")
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def decode_cursor(cursor: str, mark: str, columns: Sequence[Column]) -> list[Any] | None:
    """The values of a cursor; CursorInvalid if it is of another query."""
    wrong = CursorInvalid("InvalidCursor: the cursor is not one of this query.", fix="Begin again with cursor=None.")
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found: list[Any] = TypeAdapter(list[Any]).validate_json(raw) if len(raw) <= _MOST else []
    except (binascii.Error, ValidationError, ValueError) as error:
        raise wrong from error
    if len(found) != 2 or found[0] != mark:  # noqa: PLR2004 - the mark and the values
        raise wrong
    values = found[1]
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != len(columns):
        raise wrong
    try:
        return [None if value is None else _read(column, value) for value, column in zip(values, columns, strict=True)]
    except (ValidationError, ValueInvalid) as error:
        raise wrong from error


def _read(column: Column, value: Any) -> Any:
    return ENCODERS[column.kind]("A cursor")(_reader(column.kind).validate_json(to_json(value)))


@cache
def _reader(kind: Kind) -> TypeAdapter[Any]:
    python_type = next(type_ for type_, known in PLAIN.items() if known is kind)
    return TypeAdapter(python_type, config=ConfigDict(val_json_bytes="base64", strict=True))
