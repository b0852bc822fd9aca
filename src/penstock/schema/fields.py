"""Columns: the SQL kind of each annotated field of a table, and the check of its values.

Owns the mapping from annotations to column kinds, and the form in which a value reaches a store: None, str, int,
float, bool, bytes, datetime, date, timedelta, Decimal, UUID, or JSON text. Leaves SQL type names and the last step
to each database's own form to the stores' dialects.
"""

from __future__ import annotations

import enum
import re
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property, partial
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

from pydantic import (
    AwareDatetime,
    ConfigDict,
    FutureDate,
    FutureDatetime,
    PastDate,
    PastDatetime,
    PydanticUserError,
    TypeAdapter,
)
from pydantic.fields import FieldInfo
from pydantic_core import from_json, to_json

from penstock.codec import IS_ENCRYPTED, MARK
from penstock.dataclass import dataclass
from penstock.errors import DeclarationError, ValueInvalid
from penstock.schema.encoder import Encoder
from penstock.schema.ids import Id, id_prefix_of, is_several, names_row, target_of
from penstock.schema.tighten import plain_validator, schema_of
from penstock.values import INT64_MAX, INT64_MIN, check_text


class Kind(enum.Enum):
    """The kind of a column; each store's dialect has the SQL type."""

    __hash__ = object.__hash__  # as `jobs.states` has it: it is asked for each value that is read or captured

    TEXT = "text"
    INTEGER = "integer"
    REAL = "real"
    BOOLEAN = "boolean"
    BYTES = "bytes"
    DATETIME = "datetime"
    DATE = "date"
    INTERVAL = "interval"
    DECIMAL = "decimal"
    UUID = "uuid"
    JSON = "json"
    ENCRYPTED = "encrypted"  # ciphertext of JSON


PLAIN: dict[Any, Kind] = {
    str: Kind.TEXT,
    int: Kind.INTEGER,
    float: Kind.REAL,
    bool: Kind.BOOLEAN,
    bytes: Kind.BYTES,
    datetime: Kind.DATETIME,
    date: Kind.DATE,
    timedelta: Kind.INTERVAL,
    Decimal: Kind.DECIMAL,
    UUID: Kind.UUID,
}
_NARROWER: dict[Any, Kind] = {
    **dict.fromkeys((AwareDatetime, PastDatetime, FutureDatetime), Kind.DATETIME),
    **dict.fromkeys((PastDate, FutureDate), Kind.DATE),
}
_CHOICE_KINDS: dict[type, Kind] = {str: Kind.TEXT, int: Kind.INTEGER}
_JSON_CONFIG = ConfigDict(val_json_bytes="base64")

_NUMBERS_THAT_CHANGE = re.compile(r"-0\.0|\de\+?\d")  # also in a text, which is looked at then

_SYSTEM: dict[str, Any] = {"id": str, "creation_time": AwareDatetime}

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]


@dataclass(frozen=True)
class Column:
    name: str  # the field's name, and the column's
    kind: Kind  # its kind in SQL
    optional: bool  # whether it may hold None (NULL)
    # for an Enum or Literal, the stored values it is limited to; each store adds a CHECK
    choices: tuple[str | int, ...] = ()
    required: bool = True  # whether an insert must name it; otherwise `default` fills it
    # from a valid Python value to the form a store takes; None passes unchanged through both
    encode: Encode = field(default=lambda value: value, repr=False, compare=False)
    # from that form to the Python value; None where both are the same
    decode: Decode | None = field(default=None, repr=False, compare=False)
    long: bool = False  # whether it is for decimals of more digits than a float keeps
    info: FieldInfo | None = field(default=None, repr=False, compare=False)

    @property
    def order_obstacle(self) -> str:
        """Why no database can order its values; empty if one can."""
        return {Kind.JSON: "is stored as JSON", Kind.ENCRYPTED: "is encrypted"}.get(self.kind, "")

    @property
    def secrets(self) -> frozenset[str]:
        """The names under which its values hold secrets, its own included."""
        encoder = getattr(self.decode, "__self__", None)
        found = encoder.secrets if isinstance(encoder, Encoder) else ()
        return frozenset(name or self.name for name in found)

    def check(self, value: Any) -> Any:
        """A Python value, if it is one of this column; else ValueError."""
        return self.adapter.validate_python(value)

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """The strict check of the field's annotation alone."""
        return _strict(_SYSTEM[self.name] if self.info is None else self.info.annotation)

    def default(self) -> Any:
        """The declared default in the form a store takes. Calls the function that makes it."""
        if self.info is None or self.required:
            return None
        value = self.info.get_default(call_default_factory=True)
        if value is not None or not self.optional:
            value = _strict(Annotated[self.info.annotation, *self.info.metadata, self.name]).validate_python(value)
        return None if value is None else self.encode(value)


def _strict(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config={"strict": True})
    except PydanticUserError:  # a type with a config of its own
        return TypeAdapter(annotation)


def column_of(table: str, name: str, info: FieldInfo) -> Column:
    where = f"{table}.{name}"
    annotation, optional = strip_optional(info.annotation)
    kind, choices, encode, decode = _convert(where, annotation, info)
    long = kind is Kind.DECIMAL and _max_digits(info.annotation, info.metadata) > sys.float_info.dig
    return Column(name, kind, optional, choices, info.is_required(), encode, decode, long, info)


def _max_digits(annotation: Any, said: Iterable[Any]) -> int:
    """The number of digits that pydantic's `max_digits` allows, in any position; 0 if it is not given."""
    metadata = getattr(annotation, "__metadata__", ())
    inner = get_args(annotation)[:1] if metadata else get_args(annotation)
    found = [_max_digits(part, ()) for part in inner]
    found += [
        _max_digits(None, one.metadata) if isinstance(one, FieldInfo) else getattr(one, "max_digits", None) or 0
        for one in (*said, *metadata)
    ]
    return max(found, default=0)


def strip_optional(annotation: Any) -> tuple[Any, bool]:
    annotation = strip_annotated(annotation)
    if get_origin(annotation) is Literal:
        return annotation, None in get_args(annotation)
    if get_origin(annotation) not in {Union, types.UnionType}:
        return annotation, annotation in {Any, object, type(None)}
    members = [member for member in get_args(annotation) if strip_annotated(member) is not type(None)]
    if len(members) == len(get_args(annotation)):
        return annotation, False
    return (strip_annotated(members[0]), True) if len(members) == 1 else (Union[tuple(members)], True)  # noqa: UP007


def strip_annotated(annotation: Any) -> Any:
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif type(annotation).__name__ == "TypeAliasType":  # typing's own from Python 3.12 on
            annotation = annotation.__value__
        elif type(alias := get_origin(annotation)).__name__ == "TypeAliasType":
            annotation = alias.__value__[get_args(annotation)]
        elif hasattr(annotation, "__supertype__"):  # NewType
            annotation = annotation.__supertype__
        else:
            return annotation


def _convert(where: str, annotation: Any, info: FieldInfo) -> tuple[Kind, tuple[str | int, ...], Encode, Decode | None]:
    if _is_marked(info.annotation, info.metadata):
        return _json(where, info)
    kind_of_id = get_origin(annotation) or annotation
    if isinstance(kind_of_id, type) and issubclass(kind_of_id, Id):
        decode = Id if kind_of_id.__target__ is not None else kind_of_id  # which may be JobId
        return Kind.TEXT, (), _id_encoder(where, annotation), decode
    if get_origin(annotation) is Literal:
        values = tuple(value for value in get_args(annotation) if value is not None)
        if (kind := _choice_kind(where, values)) is not None:
            return kind, values, partial(ENCODERS[kind], where), None
    elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        values = tuple(member.value for member in annotation)
        if (kind := _choice_kind(where, values)) is not None and not issubclass(annotation, enum.Flag):
            return kind, values, lambda value: _exactly(annotation, value).value, annotation
    kind = PLAIN.get(annotation) or _NARROWER.get(annotation)
    if kind is not None:
        return kind, (), partial(ENCODERS[kind], where), None
    return _json(where, info)


def _choice_kind(where: str, values: tuple[Any, ...]) -> Kind | None:
    kinds = {_CHOICE_KINDS.get(type(value)) for value in values}
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    try:
        for value in values if kind else ():
            ENCODERS[kind](where, value)  # type: ignore[index]
    except ValueInvalid as error:
        raise DeclarationError(f"A choice of {error.what}", fix="Choose another value for it.") from None
    return kind


def _is_marked(annotation: Any, said: Sequence[Any] = ()) -> bool:
    """Whether it is `Encrypted`, under any name; `_json` sees it inside other types."""
    metadata = getattr(annotation, "__metadata__", ())
    is_union = get_origin(annotation) in {Union, types.UnionType}
    named = (getattr(annotation, "__value__", None), getattr(annotation, "__supertype__", None))
    inner = get_args(annotation)[: 1 if metadata else None] if metadata or is_union else filter(None, named)
    return MARK in (*said, *metadata) or any(map(_is_marked, inner))


def _json(where: str, info: FieldInfo) -> tuple[Kind, tuple[str | int, ...], Encode, Decode]:
    # It is spelled since typing takes `A | B` for `B | A`.
    annotation: Any = Annotated[info.annotation, *info.metadata, repr(info.annotation)]
    try:
        encoder = Encoder(schema_of(annotation, _JSON_CONFIG), plain_validator, given=True)
    except Exception as error:
        raise DeclarationError(
            f"{where}: {info.annotation!r} cannot be stored: {error}.",
            fix="Use a type that pydantic can validate and write as JSON.",
        ) from error
    if IS_ENCRYPTED in (shown := repr(encoder.schema)):
        return Kind.ENCRYPTED, (), partial(encoder.encode, what=where), encoder.decode
    if "ordered-dict" in shown or "OrderedDict" in shown:
        raise DeclarationError(f"{where}: PostgreSQL's JSON keeps no order of keys.", fix="Use a list of pairs.")

    def encode(value: Any) -> str:
        text = encoder.encode(value, where)
        if _NUMBERS_THAT_CHANGE.search(text):
            change = encoder.change(to_json(_as_numeric(from_json(text))), value)
            if change is not None:
                raise ValueInvalid(f"{where}: {change}, as JSON in PostgreSQL has no minus zero and no exponents.")
        return text

    return Kind.JSON, (), encode, encoder.decode


def _as_numeric(value: Any) -> Any:
    """A value of JSON with its numbers as PostgreSQL keeps them."""
    if isinstance(value, dict):
        return {key: _as_numeric(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(_as_numeric, value))
    if isinstance(value, float):
        return int(Decimal(repr(value))) if "e+" in repr(value) else value or 0.0
    return value


def _id_encoder(where: str, annotation: Any) -> Encode:
    target = target_of(annotation)
    if is_several(target):
        raise DeclarationError(
            f"{where}: Id[{target.__name__}] cannot be stored: it is a tuple, as its key has several columns.",
            fix="Declare a field for each of them.",
        )

    def encode(value: str) -> str:
        prefix = id_prefix_of(target)
        if prefix is not None and not names_row(prefix, value):
            raise ValueInvalid(f"{where}: {value!r} is not an id of table {prefix}.", table=prefix)
        check_text(value, where)
        return str(value)

    return encode


def _exactly(kind: type, value: Any) -> Any:
    if value.__class__ is not kind:
        raise TypeError(value)
    return value


def _text(where: str, value: str) -> str:
    if value.__class__ is not str and not isinstance(value, Id):
        raise TypeError(value)
    if "\0" in value or not value.isascii():
        check_text(value, where)
    return value


def _integer(where: str, value: int) -> int:
    if not INT64_MIN <= _exactly(int, value) <= INT64_MAX:
        raise ValueInvalid(f"{where}: an integer does not fit into 64 bits.")
    return value


def _real(where: str, value: float) -> float:
    if _exactly(float, value) != value:  # NaN
        raise ValueInvalid(f"{where}: NaN cannot be stored, because it cannot be ordered.", fix="Use None.")
    return value


def _datetime(where: str, value: datetime) -> datetime:
    if _exactly(datetime, value).tzinfo is None:
        raise ValueInvalid(f"{where}: {value} has no time zone.", fix="Use datetime.now(UTC), or attach a tzinfo.")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ValueInvalid(f"{where}: {value} lies outside the years 1 to 9999 in UTC.") from error


def _interval(where: str, value: timedelta) -> timedelta:
    if abs(_exactly(timedelta, value)) > timedelta(days=100_000_000):
        raise ValueInvalid(f"{where}: {value} is longer than 100,000,000 days.")
    return value


def _decimal(where: str, value: Decimal) -> Decimal:
    if not _exactly(Decimal, value).is_finite():
        raise ValueInvalid(f"{where}: {value} is not a number that can be stored.")
    if value.adjusted() > 1000 or value.as_tuple().exponent < -1000:  # type: ignore[operator]  # noqa: PLR2004
        raise ValueInvalid(f"{where}: {value} has more than 1,000 digits before or after the point.")
    return value


ENCODERS: dict[Kind, Callable[[str, Any], Any]] = {  # from a name for errors and a value to the form a store takes
    Kind.TEXT: _text,
    Kind.INTEGER: _integer,
    Kind.REAL: _real,
    Kind.BOOLEAN: lambda _where, value: _exactly(bool, value),
    Kind.BYTES: lambda _where, value: _exactly(bytes, value),
    Kind.DATETIME: _datetime,
    Kind.DATE: lambda _where, value: _exactly(date, value),
    Kind.INTERVAL: _interval,
    Kind.DECIMAL: _decimal,
    Kind.UUID: lambda _where, value: UUID(int=value.int),  # a driver's may be of a class of its own
}


def aware(fields: dict[str, Any]) -> dict[str, Any]:
    """A user-owned column without time zone holds UTC."""
    return {
        name: value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
        for name, value in fields.items()
    }
