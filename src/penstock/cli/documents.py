"""Documents: rows as JSON lines, in which nothing is lost.

Owns the form. It is that of the wire: ``_id`` and ``_creationTime`` (milliseconds since 1970), then the fields, with
the wire's tags for integers, floats and bytes that JSON has no way to say. A column of JSON stands as it is stored,
and nothing in it is read as a tag. A row of a user-owned table is its columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from penstock.clock import Clock
from penstock.errors import InputError, RowInvalid, ValueInvalid
from penstock.schema.fields import Kind
from penstock.schema.ids import format_id, is_id
from penstock.schema.system import SYSTEM_COLUMNS
from penstock.store.contract.session import Row
from penstock.store.sql.statements import TableStatements
from penstock.values import decode_json
from penstock.wire.tags import MAX_PLAIN_INTEGER, is_plain_float, read_tag, tag_bytes, tag_float, tag_integer

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TAGGED = {Kind.INTEGER, Kind.REAL, Kind.BYTES}


class Documents:
    """Writes the rows of one table as documents, and reads them back.

    Args:
        statements: The table.
        clock: Gives ids and creation times to documents that have none.
    """

    def __init__(self, statements: TableStatements, clock: Clock) -> None:
        self._statements = statements
        self._definition = statements.definition
        self._clock = clock
        self._columns = statements.definition.columns
        self._tagged = {column.name for column in self._columns if column.kind in _TAGGED}

    # ----- out

    def document(self, row: Row) -> dict[str, Any]:
        """A row as it came from the store, as values that JSON can say.

        Raises:
            RowInvalid: It holds what its column cannot have.
        """
        found = dict(self._said(row))
        if not self._definition.managed:
            return found
        row_id, created = (found.pop(name) for name in SYSTEM_COLUMNS)
        return {"_id": row_id, "_creationTime": created, **found}

    def line(self, row: Row) -> bytes:
        """The same as a line of JSON, with its line break."""
        return to_json(self.document(row)) + b"\n"

    def _said(self, row: Row) -> Iterator[tuple[str, Any]]:
        for column, value in zip(self._columns, self._neutral(row), strict=True):
            if value is None:
                yield column.name, None
            elif column.name == "creation_time" and self._definition.managed:
                yield column.name, (value - _EPOCH) // _MICROSECOND / 1000
            else:
                say = _SAY.get(column.kind)
                yield column.name, value if say is None else say(value)

    def _neutral(self, row: Row) -> list[Any]:
        dialect = self._statements.dialect
        try:
            if self._definition.managed:
                return [
                    dialect.decode_value(column.kind, value) for column, value in zip(self._columns, row, strict=True)
                ]
            checked = self._definition.make_rows(self._statements.decode_fields((row,)))[0]
            return list(self._definition.encode_row(checked, "", _EPOCH))
        except (ValueError, TypeError) as error:
            key = self._definition.key_at(row)
            raise RowInvalid(
                f"Table {self._definition.name}: the row {key} does not fit its declaration: {error}.",
                fix="Change the declaration, or correct the row.",
            ) from error

    # ----- in

    def row(self, line: bytes) -> list[Any]:
        """The row of a line of JSON, as the store takes it.

        Raises:
            InputError: The line is no document of this table; the message says what is wrong with it.
        """
        given = _parse(line)
        row_id, created = self._identity(given)
        fields = {name: self._read(name, value) for name, value in given.items()}
        table, text = self._definition.table, to_json(fields, bytes_mode="base64", inf_nan_mode="constants")
        try:
            strict = None if self._definition.managed else False
            checked = table.__pydantic_validator__.validate_json(text, strict=strict)
        except ValidationError as error:
            raise ValueInvalid(_described(error)) from None
        neutral = self._definition.encode_row(checked, row_id, created)
        return self._statements.encode(neutral)

    def _identity(self, given: dict[str, Any]) -> tuple[str, datetime]:
        """Takes ``_id`` and ``_creationTime`` out of a document; what is missing is made now."""
        row_id, created = given.pop("_id", None), given.pop("_creationTime", None)
        name = self._definition.name
        if not self._definition.managed:
            return "", _EPOCH
        if row_id is None:
            row_id = format_id(name, self._clock.uuid7())
        elif not isinstance(row_id, str) or not is_id(name, row_id):
            raise ValueInvalid(f"_id: {row_id!r} is not an id of table {name}.")
        if created is None:
            return row_id, self._clock.now()
        try:
            milliseconds = Decimal(
                str(float(created))
            )  # which keeps the microsecond that a product of floats would lose
            return row_id, _EPOCH + timedelta(microseconds=round(milliseconds * 1000))
        except (TypeError, ValueError, OverflowError):
            raise ValueInvalid(f"_creationTime: {created!r} is no number of milliseconds since 1970.") from None

    def _read(self, name: str, value: Any) -> Any:
        """A field's value with its tag read, in the columns that can have one."""
        if name in self._tagged and isinstance(value, dict) and len(value) == 1:
            ((tag, content),) = value.items()
            return read_tag(tag, content)
        return value


def _parse(line: bytes) -> dict[str, Any]:
    try:
        found = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise InputError(f"this is not valid JSON: {error}.") from None
    if not isinstance(found, dict):
        raise InputError(f"this is no JSON object, but {json.dumps(found)[:40]}.")
    return found


def _described(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, detail['loc'])) or 'row'}: {detail['msg']}" for detail in details[:5])


def _say_integer(value: int) -> Any:
    return value if -MAX_PLAIN_INTEGER <= value <= MAX_PLAIN_INTEGER else tag_integer(value)


def _say_real(value: float) -> Any:
    return value if is_plain_float(value) else tag_float(value)


_SAY: dict[Kind, Callable[[Any], Any]] = {
    Kind.INTEGER: _say_integer,
    Kind.REAL: _say_real,
    Kind.BYTES: tag_bytes,
    Kind.JSON: decode_json,
}
