"""The differences between the SQL of the two stores: parameters, types, and the form of values.

Owns the list of differences. Each store fills in one instance.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, NamedTuple

from penstock.dataclass import dataclass
from penstock.errors import Undecryptable
from penstock.reactive.expression import Leaf, Term
from penstock.schema.fields import Kind
from penstock.schema.table import TableDefinition

Convert = Callable[[Any], Any]
_NAMELESS = "?"
SCHEMA = "penstock"
# Names in the schema, the schema itself, and on SQLite names that begin with it; functions in Python keep their names.
_OWN = re.compile(r"(?<![\w$])penstock(?=\.[a-z]|;)|'penstock'|(?<![a-z])penstock_(?!\w+\()")
TEXT_MARK = re.compile("\0([0-9]+)\0")  # of a parameter in the SQL of a condition: no SQL holds a zero byte


def placeholder(mark: str, number: int) -> str:
    """A parameter in SQL: a mark and its number, or a question mark for the next of the values.

    SQLite's question marks have no numbers: Python takes numbered ones for named parameters.
    """
    return mark if mark == _NAMELESS else f"{mark}{number}"


def qualify(sql: str, schema: str) -> str:
    """SQL of penstock's own on the tables of a schema. No part of it may be text that others wrote."""
    if schema == SCHEMA:
        return sql
    words = {"penstock": f'"{schema}"', "'penstock'": f"'{schema}'", "penstock_": f"{schema}_"}
    return _OWN.sub(lambda found: words[found[0]], sql)


def row_of(values: Sequence[str]) -> str:
    """Values as one operand of a comparison: a single value, or a row of several."""
    return values[0] if len(values) == 1 else f"({', '.join(values)})"


class Placeholders:
    """Replaces names by placeholders. A repeated name is the same parameter, if placeholders have numbers."""

    def __init__(self, mark: str) -> None:
        self.names: list[str] = []  # of the values that the statement takes, in order
        self._mark = mark

    def put(self, name: str) -> str:
        """The placeholder of the next name."""
        if self._mark == _NAMELESS or name not in self.names:
            self.names.append(name)
        return placeholder(self._mark, self.names.index(name) + 1)


@dataclass(frozen=True, slots=True)
class Part:
    """A leaf as SQL, or the value of a term."""

    sql: str | None  # false or NULL where the leaf is false; None if the database cannot say it
    guards: tuple[str, ...] = ()  # `sql` can only be asked of rows for which all of these are true
    wide: str = ""  # never false where the leaf is true; of a term, it differs wherever the value does, and from `sql`
    wide_not: str = ""  # never false where the leaf is false


class Where(NamedTuple):
    """A condition of a query: its SQL, cut where its parameters are, and their values."""

    sql: tuple[str, ...]
    args: tuple[Any, ...]


# Of a value that is none of its kind.
UNFIT = (ValueError, TypeError, ArithmeticError, AttributeError, LookupError, Undecryptable)
ALL = Where((), ())


class Spelling(ABC):
    """One store's spelling of leaves and terms over one row, whose columns have the prefix `alias`.

    With `own` the SQL runs only on penstock's connections, which have functions of its own.
    """

    true: ClassVar[str]
    never: ClassVar[str]
    texts: list[str] | None = None  # texts that are parameters; None where there are none, as in triggers

    def __init__(self, definition: TableDefinition, dialect: Dialect, alias: str, *, own: bool) -> None:
        self.definition = definition
        self.dialect = dialect
        self.alias = alias
        self.own = own

    def text(self, value: str) -> str | None:
        """The mark of a text that is a parameter; None where it has to be a literal."""
        if self.texts is None:
            return None
        self.texts.append(value)
        return f"\0{len(self.texts) - 1}\0"

    def column(self, name: str) -> str:
        """A column of the row."""
        return f"{self.alias}.{self.dialect.quote(name)}"

    @abstractmethod
    def leaf(self, leaf: Leaf) -> Part:
        """A leaf."""

    @abstractmethod
    def watch(self, term: Term) -> Part:
        """A value that differs between two rows if the term does."""

    @abstractmethod
    def raw(self, columns: Sequence[str]) -> str:
        """A value that differs between two rows if one of some columns does."""

    def ask(self, leaf: Leaf) -> str:  # noqa: ARG002 - stores that can, use it
        """SQL that asks Python about a leaf; empty if the store cannot."""
        return ""


@dataclass(frozen=True)
class Dialect:
    """One database's spelling of penstock's SQL. In templates {0} stands for the column or the parameter."""

    name: str  # ``sqlite`` or ``postgres``
    title: str  # in files of queries: ``SQLite`` or ``PostgreSQL``
    parameter: str  # the mark of a parameter, as `placeholder` takes it
    types: Mapping[Kind, str]  # the SQL type of each kind of column
    spelling: type[Spelling]  # of conditions on a row
    encode: Mapping[Kind, Convert] = field(default_factory=dict)  # for kinds that the driver does not take as they are
    decode: Mapping[Kind, Convert] = field(default_factory=dict)  # for kinds that the driver does not give as they are
    foreign: Mapping[Kind, Convert] = field(default_factory=dict)  # in place of `encode`, for columns that users own
    spelled: Mapping[str, Convert] = field(default_factory=dict)  # the same by the spelling that `travelling` names
    given: Convert | None = None  # reads a string of captured JSON, if its spelling and not its kind tells its type
    long_type: str = ""  # for decimals of more digits than a float keeps, if it is another one: they are stored as text
    index_nulls: str = ""  # follows an optional column in an index, so that NULL comes first
    order_nulls: Mapping[str, str] = field(default_factory=dict)  # the same in an order, by direction
    casts: Mapping[Kind, str] = field(default_factory=dict)  # of parameters: a user-owned column may have another type
    sum: Mapping[Kind, str] = field(default_factory=dict)  # templates that add values, if not plain
    schemas: bool = False  # whether tables have schemas
    minus_zero: bool = True  # whether a column of floats keeps its sign
    given_identity: str = ""  # lets an insert give a value to an identity column
    # Lets the database's own numbers go on after the greatest value; {table} and {column} are parameters as well.
    advance_identity: str = ""
    table_options: str = ""  # behind the columns of a managed table
    unless_each: str = ""  # the condition that changes of a table, {0} as quoted SQL, may be merged
    find_trigger: str = ""  # looks for a foreign trigger on a table, {0} as its name and {1} as SQL, both quoted
    any_of: str = ""  # compares a column with many values in one parameter, if the store can
    # by kind, how values are read that travel as text or JSON, and written: {1} is their type
    travel: Mapping[Kind, tuple[str, str]] = field(default_factory=dict)
    max_key_bytes: int = 2048  # longest total of text and bytes in the columns of an index
    # Patterns of words in queries that both stores share, with their replacements here.
    respell: tuple[tuple[re.Pattern[str], str], ...] = ()
    schema: str = SCHEMA  # of penstock's own tables and functions; without schemas their names begin with it

    def in_schema(self, schema: str) -> Dialect:
        """This dialect for a program that has tables of its own."""
        dialect = replace(self, schema=schema)
        return replace(dialect, unless_each=dialect.qualify(self.unless_each))

    def qualify(self, sql: str) -> str:
        """SQL of penstock's own, on the tables of this schema."""
        return qualify(sql, self.schema)

    def owns(self, table: str) -> bool:
        """Whether a table has a name that this schema keeps for penstock."""
        return self.schema != SCHEMA and table.lower().startswith(f"{self.schema}{'.' if self.schemas else '_'}")

    def translate(self, sql: str) -> str:
        """A query that both stores share, in this dialect."""
        for pattern, words in self.respell:
            sql = pattern.sub(words, sql)
        return self.qualify(sql)

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
