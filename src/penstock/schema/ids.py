"""Ids of rows and jobs: readable, unguessable, time-ordered, and bound to their table.

Owns their spelling: a prefix, an underscore, and a UUIDv7 in 26 characters of Crockford's base 32 (the TypeID
form). Leaves making the UUID to the clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, ForwardRef, Generic, LiteralString, TypeVar, get_args, get_origin
from uuid import UUID

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from penstock.errors import IdInvalid, InputError

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}
_LENGTH = 26
JOB_PREFIX = "job"
FILE_PREFIX = "file"
ID_OF = "penstock.id_of"  # in the metadata of a schema: the table whose ids it checks
WRONG_ID: LiteralString = "id_of_another_table"  # pydantic's type of error for a text that is no id of the table
_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_SHIFTS = range(120, -1, -10)
_LOW_BITS = 40
_LOW = (1 << _LOW_BITS) - 1

T = TypeVar("T")


class Id(str, Generic[T]):
    """The id of a row of table `T`: a string such as ``booking_01jd3k4v5w6x7y8z9a0b1c2d3e``.

    In annotations `Id[Booking]` is checked where it enters: an id of another table, or a malformed one, is
    refused. `Id[File]` also takes the UUID at the end of a file's permanent URL. For a user-owned table
    (``managed=False``) it is the key as text, or a tuple of values if that has several columns. Each has to be a
    value of its column.
    """

    __slots__ = ()
    __target__: ClassVar[Any] = None

    if not TYPE_CHECKING:

        def __class_getitem__(cls, target: Any) -> Any:
            """A class, as FastAPI takes no generic parameter types; for a table that comes later, a generic type."""
            if cls is not Id or not hasattr(target, "__id_prefix__") or is_several(target):
                return super().__class_getitem__(target)
            if "__id_class__" not in vars(target):
                names = {"__slots__": (), "__target__": target}
                target.__id_class__ = type(f"Id[{target.__name__}]", (Id,), names)
            return target.__id_class__

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        target = target_of(source)
        if is_several(target):
            return core_schema.no_info_plain_validator_function(partial(_check_key, target), metadata={ID_OF: target})
        return core_schema.no_info_after_validator_function(
            partial(_check, target),
            core_schema.str_schema(strict=True, max_length=1024),
            serialization=core_schema.to_string_ser_schema(),
            metadata={ID_OF: target},
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        if (prefix := id_prefix_of(cls.__target__)) is not None:
            older = f"|^{_UUID}$" if prefix == FILE_PREFIX else ""
            described["pattern"] = f"^{prefix}_[0-7][0-9a-hjkmnp-tv-z]{{{_LENGTH - 1}}}${older}"
        return described


# As `get` and the like take it: the key, for tables of other programs; a tuple where that has several columns.
RowId = Id[T] | int | UUID | tuple[Any, ...]


def _check(target: Any, text: str) -> Id[Any]:
    """A text as an id of a table, which may be named before its class exists."""
    prefix = id_prefix_of(target)
    if prefix is not None and not names_row(prefix, text):
        raise PydanticCustomError(
            WRONG_ID,
            "Input should be an id of table {table}, like {table}_01jd3k4v5w6x7y8z9a0b1c2d3e",
            {"table": prefix},
        )
    if prefix is None and hasattr(target, "__declared__"):
        _check_key(target, text)
    return Id(text)


def _check_key(target: Any, given: Any) -> Any:
    """A text, or for several key columns a tuple or an array of JSON, as an id of a table of another program."""
    try:
        return target.__check_id__(given)
    except InputError as error:
        kind: LiteralString = "key_of_another_table" if is_several(target) else WRONG_ID
        raise PydanticCustomError(kind, "{what}", {"what": error.what.rstrip(".")}) from error


def target_of(annotation: Any) -> Any:
    """The table of an annotation `Id[Booking]`; None if it names none."""
    return get_args(annotation)[0] if get_origin(annotation) is Id else getattr(annotation, "__target__", None)


def is_several(target: Any) -> bool:
    """Whether ids of a table class are tuples, since its key has several columns."""
    return len(getattr(getattr(target, "__declared__", None), "key", ())) > 1


def id_prefix_of(target: Any) -> str | None:
    """The prefix of a table's ids; None if any id fits: no table is named, or it is user-owned."""
    if isinstance(target, str | ForwardRef | TypeVar) or target in {None, Any}:
        return None
    prefix: str | None = getattr(target, "__id_prefix__", None)
    return prefix


def format_id(prefix: str, bits: int) -> str:
    return prefix + "_" + "".join([_PAIRS[bits >> shift & 1023] for shift in _SHIFTS])


def format_ids(prefix: str, ids: Iterable[int]) -> Iterator[str]:
    """Format many ids. Ids made one after another share a head, which is spelled once."""
    known, head = -1, ""
    for bits in ids:
        high, low = bits >> _LOW_BITS, bits & _LOW
        if high != known:
            known, head = high, format_id(prefix, bits)[: -_LOW_BITS // 5]
        yield head + _PAIRS[low >> 30] + _PAIRS[low >> 20 & 1023] + _PAIRS[low >> 10 & 1023] + _PAIRS[low & 1023]


def is_id(prefix: str, text: str) -> bool:
    start = len(prefix) + 1
    return (
        len(text) == start + _LENGTH
        and text.startswith(prefix)
        and text[start - 1] == "_"
        and text[start] in "01234567"  # 26 characters hold 130 bits; an id has 128
        and not text[start:].strip(_ALPHABET)
    )


def names_row(prefix: str, text: str) -> bool:
    """Whether a text stands for a row of a table where its id is wanted: its id, or a file's UUID."""
    return is_id(prefix, text) or (prefix == FILE_PREFIX and is_storage_id(text))


def is_storage_id(text: str) -> bool:
    """Whether a text is the UUID in the permanent URL of a file, which stands for its id."""
    return re.fullmatch(_UUID, text) is not None


def parse_id(prefix: str, text: str) -> int:
    given: object = text
    if not isinstance(given, str) or not is_id(prefix, text):
        raise IdInvalid(
            f"{text!r} is not an id of a {prefix}.", fix=f"Pass an id that begins with {prefix}_.", table=prefix
        )
    bits = 0
    for letter in text[-_LENGTH:]:
        bits = bits << 5 | _VALUES[letter]
    return bits
