"""Where the SQL of the two stores parts: parameters, types, and the form of values. Everything else is shared.

Owns the list of differences. Each store fills in one instance.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.reactive.expression import Leaf, Term
from penstock.schema.fields import Kind
from penstock.schema.table import TableDefinition

Convert = Callable[[Any], Any]
_NAMELESS = "?"


def placeholder(mark: str, number: int) -> str:
    """What stands for a parameter in SQL: a mark and its number, or a question mark, for the next of the values.

    The question marks of SQLite have no numbers here, as Python takes those with one for named parameters, and refuses
    a list of values for them.
    """
    return mark if mark == _NAMELESS else f"{mark}{number}"


def row_of(values: Sequence[str]) -> str:
    """Values as one that is compared with others: itself, or a row of several."""
    return values[0] if len(values) == 1 else f"({', '.join(values)})"


class Placeholders:
    """Puts placeholders in the place of names, in the order in which they stand in a statement.

    A name that comes again is the same parameter where they have numbers, and otherwise one more with the same value.

    Attributes:
        names: The names of the values that the statement takes, in order.
    """

    def __init__(self, mark: str) -> None:
        self.names: list[str] = []
        self._mark = mark

    def put(self, name: str) -> str:
        """What stands in the place of the next name."""
        if self._mark == _NAMELESS or name not in self.names:
            self.names.append(name)
        return placeholder(self._mark, self.names.index(name) + 1)


@dataclass(frozen=True, slots=True)
class Part:
    """A leaf as SQL, or the value of a term.

    Attributes:
        sql: True if the leaf is; false or NULL if it is not. None if the database cannot say it.
        guards: Of which rows `sql` can be asked: those of which all of these are true.
        wide: What is never false where the leaf is true, of all rows; of a term, what differs wherever its value does,
            and from all that `sql` may be.
        wide_not: What is never false where the leaf is false.
    """

    sql: str | None
    guards: tuple[str, ...] = ()
    wide: str = ""
    wide_not: str = ""


class Spelling(ABC):
    """How one store spells leaves and terms over one row.

    Args:
        definition: The row's table.
        dialect: The store's.
        alias: What stands before the columns: ``new``, or an alias of the table.
        own: Whether the SQL runs on connections of penstock's only, which have functions of its own.
    """

    true: ClassVar[str]

    def __init__(self, definition: TableDefinition, dialect: Dialect, alias: str, *, own: bool) -> None:
        self.definition = definition
        self.dialect = dialect
        self.alias = alias
        self.own = own

    def column(self, name: str) -> str:
        """A column of the row."""
        return f"{self.alias}.{self.dialect.quote(name)}"

    @abstractmethod
    def leaf(self, leaf: Leaf) -> Part:
        """A leaf."""

    @abstractmethod
    def watched(self, term: Term) -> Part:
        """What differs between two rows if the value of a term does."""

    @abstractmethod
    def raw(self, columns: Sequence[str]) -> str:
        """What differs between two rows if one of some columns does."""

    def ask(self, leaf: Leaf) -> str:  # noqa: ARG002 - stores that can, use it
        """What asks Python about a leaf; empty if the store cannot."""
        return ""


@dataclass(frozen=True)
class Dialect:
    """How one database spells what penstock says.

    Attributes:
        name: ``sqlite`` or ``postgres``.
        title: What files of queries call it.
        respell: Patterns of words in queries that both stores share, and what stands for them here.
        parameter: The mark of a parameter, as `placeholder` takes it.
        types: The SQL type of each kind of column.
        encode: For kinds that the driver does not take as they are.
        decode: For kinds that the driver does not give as they are.
        given: What reads a string of captured JSON, if its spelling says what the driver gave, as a column may hold
            values of any type; None if its declared kind says it.
        decoded_to_compare: Kinds whose values are not ordered as the driver gives them.
        long_type: The SQL type of decimals of more digits than a float keeps, if it is another one. Such values are
            written as text, and so are those of user-owned columns, whatever their type.
        index_nulls: What an index says after an optional column, so that NULL comes first.
        casts: Parameters of these kinds are cast, as user-owned columns may have another type.
        sum: What adds the values of a kind, with {0} for the column.
        given_identity: What an insert says so that it may give a value to an identity column.
        advance_identity: What lets the database's own numbers of a column go on after its greatest value, with
            {table} and {column}, which are its parameters as well; empty if they do so by themselves.
        unless_each: What a statement that may merge changes asks, with {0} for its table as SQL within quotes, so that
            it changes nothing where each change counts; empty if there is no such statement.
        any_of: What compares a column with many values, with {0} for their one parameter; empty if there is no such
            parameter.
        max_key_bytes: Longest total of text and bytes in the columns of an index.
        spelling: How conditions on a row are spelled.
    """

    name: str
    title: str
    parameter: str
    types: Mapping[Kind, str]
    spelling: type[Spelling]
    encode: Mapping[Kind, Convert] = field(default_factory=dict)
    decode: Mapping[Kind, Convert] = field(default_factory=dict)
    given: Convert | None = None
    decoded_to_compare: frozenset[Kind] = frozenset()
    long_type: str = ""
    index_nulls: str = ""
    order_nulls: Mapping[str, str] = field(default_factory=dict)
    casts: Mapping[Kind, str] = field(default_factory=dict)
    sum: Mapping[Kind, str] = field(default_factory=dict)
    schemas: bool = False
    given_identity: str = ""
    advance_identity: str = ""
    unless_each: str = ""
    any_of: str = ""
    max_key_bytes: int = 2048
    respell: tuple[tuple[re.Pattern[str], str], ...] = ()

    def respelled(self, sql: str) -> str:
        """A query that both stores share, in this dialect."""
        for pattern, words in self.respell:
            sql = pattern.sub(words, sql)
        return sql

    def quote(self, name: str) -> str:
        """A name as an SQL identifier."""
        return '"' + name.replace('"', '""') + '"'

    def table(self, name: str) -> str:
        """The name of a table as an SQL identifier, with its schema if the store has schemas."""
        if self.schemas:
            return ".".join(map(self.quote, name.split(".")))
        return self.quote(name)

    def encode_value(self, kind: Kind, value: Any) -> Any:
        """A value in the neutral form, as the driver takes it."""
        convert = self.encode.get(kind)
        return value if convert is None or value is None else convert(value)

    def decode_value(self, kind: Kind, value: Any) -> Any:
        """A value as the driver gives it, in the neutral form."""
        convert = self.decode.get(kind)
        return value if convert is None or value is None else convert(value)
