"""Pages and their cursors. A cursor is a place in one query's order, and refused by any other query.

It is no secret: its holder can read the values of the last row in the columns of that order.

A journal lists the ends of the pages that one run of a function has read for its client, in the order of its calls. A
later run that gets it reads pages with the same ends, so pages that were joined at their cursors stay joined. It comes
from the client, so it bears on nothing but pages whose options come from there too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from typing import Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import to_json

from penstock.errors import CursorInvalid, ValueInvalid
from penstock.schema.fields import ENCODERS, PLAIN, Column, Kind
from penstock.store.sql.dialect import UNFIT, Dialect

T = TypeVar("T")
U = TypeVar("U")

Place = Sequence[Any] | None  # in the order of a query: after a row with these values, at the beginning, at the end
BEGINNING: Final = ()
END: Final = None

# On SQLite another program may store text for a number or bytes, and bytes for text: they stand in a list of their own.
OTHERS: Final = {Kind.TEXT: bytes, Kind.BYTES: str, Kind.INTEGER: str, Kind.REAL: str}

_MOST = 16_384
_NUMBERS = frozenset({Kind.INTEGER, Kind.REAL, Kind.DECIMAL})
_ENDS = TypeAdapter(list[str])


class PaginationOptions(BaseModel):
    """The page that a caller asks for. A function takes it as its parameter `pagination_opts`.

    Clients send it as `paginationOpts`, with names in camel case.

    Attributes:
        num_items: Rows per page, from 1 to 10,000; 100 by default. A page with an end has as many as there are.
        cursor: None for the first page; then the `continue_cursor` of the page before.
        end_cursor: The end of the page, a cursor of the same query; by default it ends after `num_items` rows.
        maximum_rows_read: Rows to read at most, with the ones that a filter drops; by default the rows that the
            transaction may still read. A page that would read more ends early, and is marked `SplitRequired`. One that
            has an end is read to there, and marked `SplitRecommended`.
        maximum_bytes_read: The same for bytes.
        id: Tells lists on one screen from each other, which otherwise share their pages.
    """

    model_config = ConfigDict(frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True)

    num_items: int = Field(default=100, ge=1, le=10_000)
    cursor: str | None = None
    end_cursor: str | None = None
    maximum_rows_read: int | None = Field(default=None, ge=1)
    maximum_bytes_read: int | None = Field(default=None, ge=1)
    id: float | None = None


class Page(BaseModel, Generic[T]):
    """One page of a query.

    Attributes:
        page: The rows.
        is_done: Whether the page ends at the end of the query, so that none follows.
        continue_cursor: The cursor of the next page, which is the end of this one. It holds the last row's values in
            the columns of the query's order, and is not encrypted.
        split_cursor: A place inside of the page, at which it can be read as two pages. None for one complete row, or
            none.
        page_status: `SplitRecommended` if the page has read more than three quarters of what it may. `SplitRequired`
            if a limit ended it before it had its `num_items`, or its end. Otherwise None.
    """

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, arbitrary_types_allowed=True
    )

    page: list[T]
    is_done: bool
    continue_cursor: str
    split_cursor: str | None = None
    page_status: Literal["SplitRecommended", "SplitRequired"] | None = None

    def replace_rows(self, rows: Sequence[U]) -> Page[U]:
        """Make a page of what a function returns in place of the rows; its ends and its status stay.

        Args:
            rows: One value for each row of this page, or fewer.
        """
        return Page[Any](**{**dict(self), "page": list(rows)})


def page_options(options: PaginationOptions | None, cursor: str | None, num_items: int) -> PaginationOptions:
    """The options of `paginate`, which takes them whole or one by one."""
    if options is not None:
        if cursor is not None or num_items != 100:  # noqa: PLR2004 - the default
            raise ValueInvalid("paginate takes options, or cursor and num_items, and not both.")
        return options
    try:
        return PaginationOptions(cursor=cursor, num_items=num_items)
    except ValidationError as error:
        raise ValueInvalid(f"There is no such page: {error}.") from error


def fingerprint(*query: object) -> str:
    """The mark of a query in its cursors: its table, its index and all that chooses or orders rows."""
    return hashlib.blake2b(repr(query).encode(errors="replace"), digest_size=6).hexdigest()


def encode_cursor(mark: str, place: Place) -> str:
    text = to_json([mark, place], bytes_mode="base64", inf_nan_mode="constants")
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def decode_cursor(cursor: str, mark: str, columns: Sequence[Column], dialect: Dialect) -> Place:
    """The place of a cursor, its values as the store holds them; CursorInvalid if it is of another query."""
    wrong = invalid_cursor()
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found: list[Any] = TypeAdapter(list[Any]).validate_json(raw) if len(raw) <= _MOST else []
    except (binascii.Error, ValidationError, ValueError) as error:
        raise wrong from error
    if len(found) != 2 or found[0] != mark:  # noqa: PLR2004 - the mark and the values
        raise wrong
    values = found[1]
    if values is None:
        return END
    if not isinstance(values, list) or len(values) != len(columns):
        raise wrong
    try:
        given = zip(columns, values, strict=True)
        return [None if value is None else _read(column, value, dialect) for column, value in given]
    except (ValidationError, ValueInvalid, *UNFIT) as error:
        raise wrong from error


def encode_journal(ends: Sequence[str]) -> str | None:
    """The journal of a run that read pages with these ends; None if it read none."""
    return to_json(ends).decode() if ends else None


def decode_journal(journal: str | None) -> list[str]:
    try:
        return [] if journal is None else _ENDS.validate_json(journal)
    except ValidationError as error:
        raise invalid_cursor("the journal is none") from error


def invalid_cursor(what: str = "the cursor is not one of this query") -> CursorInvalid:
    return CursorInvalid(f"InvalidCursor: {what}.", fix="Begin again with cursor=None.")


def _read(column: Column, value: Any, dialect: Dialect) -> Any:
    """A value as the store holds it: another program may spell it otherwise, or keep numbers of another type."""
    kind = column.kind
    if kind in dialect.encode:
        dialect.decode_value(kind, value)
    elif kind in OTHERS and isinstance(value, list):
        (value,) = value
        return _reader(PLAIN[OTHERS[kind]]).validate_json(to_json(value))
    elif kind in _NUMBERS and type(value) in {str, int, float}:  # the text is a Decimal
        value = dialect.encode_value(Kind.DECIMAL, Decimal(value)) if isinstance(value, str) else value
        if kind is Kind.INTEGER and value % 1 != 0:
            raise ValueInvalid(f"A cursor: {value} is no integer.")
    else:
        return ENCODERS[kind]("A cursor", _reader(kind).validate_json(to_json(value)))
    return ENCODERS[Kind.INTEGER]("A cursor", value) if isinstance(value, int) else value


@cache
def _reader(kind: Kind) -> TypeAdapter[Any]:
    python_type = next(type_ for type_, known in PLAIN.items() if known is kind)
    strict = kind is not Kind.DATE  # another program's column may hold it as midnight
    return TypeAdapter(python_type, config=ConfigDict(val_json_bytes="base64", strict=strict))
