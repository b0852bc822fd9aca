"""Documents of Convex as rows of penstock, and its ids as penstock's.

An id becomes the same one each time: it is made of its row's creation time and the old id.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable
from functools import lru_cache, partial
from math import isfinite
from typing import Any, ClassVar

from pydantic_core import to_json

from penstock.cli.data import parse_line, read_creation_time
from penstock.cli.lines import Lines, pass_over
from penstock.cli.snapshots.archive import Snapshot
from penstock.clock import layout_uuid7
from penstock.errors import ArgumentsInvalid, ConfigError, ValueInvalid
from penstock.functions.component import SEPARATOR
from penstock.functions.signature import Signature
from penstock.schema.ids import format_id
from penstock.store.sql.statements import TableStatements
from penstock.wire.incoming import Message
from penstock.wire.tags import tag_integer


class ConvexRows:
    """Makes rows of Convex's documents, as if a client of Convex had sent them to a function that takes the table."""

    def __init__(self, statements: TableStatements, convert_id: Callable[[str], str], *, is_typed: bool) -> None:
        definition = statements.definition
        if not definition.managed:
            fix = "Import into a managed table."
            raise ConfigError(f"{definition.name} has keys of its own, and Convex's documents have none.", fix=fix)
        self._statements = statements
        self._convert_id = convert_id
        self._is_typed = is_typed
        self._names = {_camel(column.name): column.name for column in definition.columns}
        fields = definition.table.model_fields
        self._nulls = {
            name: None for name, one in fields.items() if one.is_required() and definition.column(name).optional
        }

        async def take(_ctx: Any, row: Any) -> None:
            """Take a row."""

        take.__annotations__["row"] = definition.table
        self._signature = Signature(take, definition.name)

    def row(self, line: bytes) -> list[Any]:
        """The row of a line as the store takes it; an InputError says what is wrong with it."""
        given = parse_line(line)
        old, created = given.pop("_id", None), given.pop("_creationTime", None)
        if not isinstance(old, str) or created is None:
            raise ValueInvalid("it has no _id or no _creationTime.")
        fields = self._nulls | {self._names.get(name, name): self._convert(value) for name, value in given.items()}
        message = Message(to_json({"row": fields}, inf_nan_mode="constants"))
        try:
            row = self._signature.check_json(message.arguments(message.value))["row"]
        except ArgumentsInvalid as error:
            what = error.what.partition("invalid arguments: ")[2] or error.what
            raise ValueInvalid(what.replace("row.", "")) from None
        neutral = self._statements.definition.encode_row(row, self._convert_id(old), read_creation_time(created))
        return self._statements.encode(neutral)

    def _convert(self, value: Any) -> Any:
        """A value with penstock's ids, and with integers as Convex's clients send them."""
        if isinstance(value, str):
            return self._convert_id(value)
        if isinstance(value, dict):
            return {self._convert_id(name): self._convert(one) for name, one in value.items()}  # a record by ids
        if isinstance(value, list):
            return [self._convert(one) for one in value]
        is_integer = self._is_typed and isinstance(value, int) and not isinstance(value, bool)
        return tag_integer(value) if is_integer else value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


class ConvexIds:
    """The ids of penstock for those of Convex. Each component of Convex has numbers of tables of its own.

    Args:
        prefixes: The prefix of the ids of each table that has a place here.
        source: The snapshot.
    """

    _LOOKS_LIKE: ClassVar = re.compile(r"[0-9a-hjkmnp-tv-z]{31,37}|[0-9a-f-]{36}")
    _LETTERS: ClassVar = {letter: value for value, letter in enumerate("0123456789abcdefghjkmnpqrstvwxyz")}

    def __init__(self, prefixes: dict[str, str], source: Snapshot) -> None:
        self._prefixes = prefixes
        self._source = source
        self._numbers: dict[str, dict[int, str]] = {}  # of tables, by component
        self._known = sqlite3.connect("")  # a file of its own, which goes with the connection: there may be millions
        self._known.execute("create table known (old text primary key, new text) without rowid")

    def within(self, component: str) -> Callable[[str], str]:
        """Make what gives the id of penstock for a text of a component that is one of Convex; else the text."""
        return lru_cache(100_000)(partial(self._convert, self._numbers_of(component)))

    def _numbers_of(self, component: str) -> dict[int, str]:
        if component not in self._numbers:
            self._numbers[component] = self._source.numbers(component)
        return self._numbers[component]

    def learn(self, table: str, lines: Lines) -> None:
        """Note the ids of a table's rows; they begin with the creation time, as the rows are in its order.

        A file has an older id, too: the UUID in its URL.
        """
        prefix = self._prefixes.get(table)
        if prefix is None:
            return

        def pair(line: bytes) -> list[Any]:
            given = parse_line(line)
            old, created = given.get("_id"), given.get("_creationTime")
            if not isinstance(old, str) or not isinstance(created, int | float) or not isfinite(created):
                raise ValueInvalid("it has no _id or no _creationTime.")
            return [old, given.get("internalId"), format_id(prefix, _bits(old, created))]

        for piece in lines.pieces(pair, pass_over):
            pairs = [(name, new) for old, older, new in piece.rows for name in (old, older) if isinstance(name, str)]
            self._known.executemany("insert or ignore into known values (?, ?)", pairs)
            if (number := self._table_number(piece.rows[0][0])) >= 0:
                self._numbers_of(table.rpartition(SEPARATOR)[0]).setdefault(number, table)

    def _convert(self, numbers: dict[int, str], text: str) -> str:
        if self._LOOKS_LIKE.fullmatch(text) is None:
            return text
        found = self._known.execute("select new from known where old = ?", (text,)).fetchone()
        if found is not None:
            return str(found[0])
        prefix = self._prefixes.get(numbers.get(self._table_number(text), ""))
        return text if prefix is None else format_id(prefix, _bits(text, 0))  # of a row that was deleted

    def _table_number(self, text: str) -> int:
        """The table's number in an id whose check sum is right; else -1."""
        if self._LOOKS_LIKE.fullmatch(text) is None or "-" in text:
            return -1
        bits = 0
        for letter in text:
            bits = bits << 5 | self._LETTERS[letter]
        size = len(text) * 5 // 8
        raw = (bits >> (len(text) * 5 - size * 8)).to_bytes(size, "big")
        low = high = 0
        for one in raw[:-2]:
            low = low + one & 255
            high = high + low & 255
        if raw[-2:] != bytes((low, high)):  # Fletcher's check sum, of 256
            return -1
        return sum((one & 127) << 7 * place for place, one in enumerate(raw[:-18]))


def _bits(old: str, created: float) -> int:
    milliseconds = min(max(int(created), 0), 2**48 - 1)
    part = int(created % 1 * 4096)
    chance = part << 62 | int.from_bytes(hashlib.sha256(old.encode()).digest()[:8], "big") >> 2
    return layout_uuid7(milliseconds, chance)
