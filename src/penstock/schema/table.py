"""Tables: pydantic models that are stored as real SQL tables, one typed column per field.

Owns the declaration and its definition: name, key, columns, indexes. Leaves SQL to the stores and access to rows to
`transaction/database`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast, dataclass_transform

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PrivateAttr,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    ValidationError,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from penstock.dataclass import dataclass
from penstock.errors import DeclarationError, PenstockError, UsageError, ValueInvalid
from penstock.schema.fields import Column, Kind, aware, column_of
from penstock.schema.ids import FILE_PREFIX, JOB_PREFIX, Id, is_id
from penstock.schema.index import Index
from penstock.schema.keys import check_key, check_several, encode_one, wrong_id
from penstock.schema.rules import Rules
from penstock.schema.searching import check_search, check_vectors, index_title
from penstock.schema.systemfields import SYSTEM_COLUMNS, SYSTEM_FIELDS, add_system_fields
from penstock.schema.tighten import tighten
from penstock.schema.written import Written, add_place, place_of_class
from penstock.search.index import ColumnIndex, SearchIndex
from penstock.search.vectors import VectorIndex

_MAX_COLUMNS = 1024
_RESERVED_PREFIXES = ("penstock", "pg_", "sqlite_", "_")
_RESERVED_NAMES = {JOB_PREFIX, FILE_PREFIX}  # its rows' ids would pass as ids of jobs, or of files

_new = object.__new__
# The slots of a model that its validator fills; `object.__setattr__` would look them up each time.
_set_dict, _set_fields_set, _set_extra, _set_private = (
    BaseModel.__dict__[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass

    @dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field, PrivateAttr))
    class _Frozen(ModelMetaclass):
        """Tells type checkers that the fields of a row cannot be set."""

else:
    _Frozen = type(BaseModel)


class Table(BaseModel, metaclass=_Frozen):
    """A row of a typed SQL table; subclass it to declare one.

    Each annotated field is a column of a fitting SQL type; nested models, lists, dicts and unions become JSON.
    `Index(...)` attributes are its indexes, and a `Rules(...)` attribute says what callers may do. penstock adds `id`
    and `creation_time`, and sets both on insert. A row is a value: it is frozen, and changes are made with
    ``ctx.db.patch`` and ``ctx.db.replace``.

    Class arguments:
        name: The SQL table's name; the class name in snake case by default.
        source: A table that exists already, such as ``"shop.orders"``; only with ``managed=False``.
        key: The column that identifies its rows, or a tuple of columns; with `source`, required.
        managed: Whether penstock creates and changes the table (the default). A table that some other program
            owns is declared with ``managed=False``: it has no system fields, and its rows' ids are its keys. The id
            of a row with several key columns is a tuple of their values.
        live: Whether its changes are captured while live queries read it, which then run again at once; otherwise they
            look again every few seconds. By default that of `managed`: capturing puts triggers on the table.
        stored: Whether it is a table. With ``stored=False`` it is none, but a row of the table that it derives from,
            with more fields, for results: ``class Shown(Message, stored=False)``. `from_row` makes one.

    Raises:
        DeclarationError: At import, for a name, a field or an index that cannot be. If it names classes that come
            later in the module, its fields and the kinds of indexed columns are checked when the app is opened.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        validate_default=True,
        populate_by_name=True,
        ignored_types=(Index, Rules, SearchIndex, VectorIndex),
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )

    __managed__: ClassVar[bool] = False
    __id_prefix__: ClassVar[str | None] = None
    __row_type__: ClassVar[type[Table] | None] = None  # of the table of a component: the class of its rows
    __declared__: ClassVar[_Declared]
    __indexes__: ClassVar[tuple[Index, ...]] = ()
    __definition__: ClassVar[TableDefinition | None] = None

    if TYPE_CHECKING:

        @property
        def id(self) -> Id[Self]:
            """The id that insert gave to this row."""

        @property
        def creation_time(self) -> datetime:
            """When this row was inserted: the ``ctx.now()`` of its mutation."""

    def __init_subclass__(cls, *, managed: bool = True, stored: bool = True, **_arguments: Any) -> None:
        super().__init_subclass__()
        if stored:
            cls.__managed__ = managed  # which its schema, made next, depends on

    @classmethod
    def __pydantic_init_subclass__(
        cls,
        *,
        name: str | None = None,
        source: str | None = None,
        key: str | Sequence[str] | None = None,
        managed: bool = True,
        live: bool | None = None,
        stored: bool = True,
        **unknown: Any,
    ) -> None:
        with add_place(cls):
            if unknown:
                raise DeclarationError(f"Table {cls.__name__}: unknown class argument {', '.join(unknown)}.")
            if not stored:
                _check_unstored(cls, alone=not (name or source or key or live is not None) and managed)
                return
            cls.__declared__ = _declare(cls, name, source, key, managed, managed if live is None else live)
        cls.__id_prefix__ = cls.__declared__.sql_name if managed else None
        if (rows := cls.__dict__.get("__row_type__")) is not None:
            cls.__id_prefix__ = rows.__id_prefix__
        cls.__indexes__ = tuple(_indexes(cls))
        cls.__definition__ = None
        if cls.__pydantic_complete__:
            definition_of(cls)

    @classmethod
    def from_row(cls, row: Table, /, **more: Any) -> Self:
        """Make a row of a class with ``stored=False``: the fields of a stored row, and the ones that the class adds.

        Args:
            row: A row of the table that the class derives from, as `get` and queries give it.
            **more: The fields that the class adds. Fields of the row may be among them, which they then replace.

        Raises:
            UsageError: The class is a table itself, or the row is none of the table that it derives from.
            ValidationError: Of pydantic: a field is missing, unknown, or of another type.
        """
        table = table_of(cls)
        if table is cls or not isinstance(row, table) or "id" not in row.__dict__:
            raise UsageError(
                f"{cls.__name__}.from_row does not take this {type(row).__name__}.",
                fix=f"Derive a class from {table.__name__} with stored=False, and pass it a stored row of that table.",
            )
        fields = {name: value for name, value in row.__dict__.items() if table.__managed__ or name in cls.model_fields}
        made = cls.model_validate(fields | more)
        made.__dict__.setdefault("id", row.__dict__["id"])
        return made

    @classmethod
    def __check_id__(cls, given: Any) -> Any:
        definition = definition_of(table_of(cls))
        if len(definition.key) == 1:
            definition.encode_key(given)
            return given
        return check_several(definition.name, definition.key_columns, given)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        try:
            schema = tighten(handler(source))
        except PydanticUserError as error:
            with add_place(cls):
                raise DeclarationError(
                    f"Table {cls.__name__}: a field cannot be stored: {error.message.partition('. ')[0]}.",
                    fix="Use a type that pydantic validates, such as a BaseModel or a dataclass.",
                ) from error
        if cls.__managed__:
            add_system_fields(schema, handler.generate_schema(Id[cls]))  # type: ignore[valid-type]  # at run time
        return schema

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        if cls.__managed__:  # outgoing rows have the system fields, incoming ones may have them
            found = handler.resolve_ref_schema(described)
            for name in SYSTEM_COLUMNS:
                found.get("properties", {}).get(name, {}).pop("default", None)
            if handler.mode == "serialization" and "properties" in found:
                found["required"] = [*SYSTEM_COLUMNS, *found.get("required", ())]
        return described

    if not TYPE_CHECKING:  # which would let every name pass

        def __getattr__(self, name: str) -> Any:
            if name in SYSTEM_COLUMNS:
                raise AttributeError(
                    f"This {type(self).__name__} has no {name} yet: ctx.db.insert stores it and returns its id."
                )
            return super().__getattr__(name)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name in SYSTEM_COLUMNS:
            if name in self.__dict__ and self.__declared__.managed:  # others have their key among their fields
                yield name, self.__dict__[name]
        yield from super().__repr_args__()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return self.__dict__.get("id") == other.__dict__.get("id") and super().__eq__(other)

    def __hash__(self) -> int:
        if "id" in self.__dict__:
            return hash((type(self), self.__dict__["id"]))
        return hash((type(self), *(self.__dict__[name] for name in type(self).model_fields)))


if TYPE_CHECKING:

    class UserTable(Table):
        """A `Table` of another program which has a column ``id``: type checkers take that for the id of its rows."""

        id: Any

else:
    UserTable = Table


@dataclass(frozen=True)
class _Declared:
    sql_name: str
    key: tuple[str, ...]
    managed: bool
    live: bool
    written: Written | None


@dataclass(frozen=True)
class TableDefinition:
    """The definition of a table class: everything a store needs to know of it."""

    table: type[Table]
    name: str  # the SQL name; with a schema before a dot for some user-owned tables
    row_type: type[Table]  # the class of its rows: `table`, but for the tables of components
    key: tuple[str, ...]  # the columns that identify a row: `id`, or the user-owned table's own
    managed: bool  # whether penstock creates and changes the table
    live: bool  # whether its changes are captured for live queries
    columns: tuple[Column, ...]  # all columns in order, the system's first
    indexes: Mapping[str, Index]  # the declared indexes by name
    searches: Mapping[str, ColumnIndex]  # the declared search and vector indexes by name
    rules: Rules | None  # what callers may do with its rows; None if they may do everything
    positions: Mapping[str, int] = field(repr=False)

    def column(self, name: str) -> Column:
        position = self.positions.get(name)
        if position is None:
            raise ValueInvalid(
                f"Table {self.table.__name__} has no column {name!r}.",
                fix=f"Its columns are {', '.join(self.positions)}.",
            )
        return self.columns[position]

    def order_of(self, index: Index | None) -> tuple[str, ...]:
        """The columns that order the rows of an index, or of the whole table: always a total order."""
        return self._orders[index]

    @cached_property
    def _orders(self) -> Mapping[Index | None, tuple[str, ...]]:
        columns = [(index, index.columns if index else ()) for index in (None, *self.indexes.values())]
        return {index: (*first, *(name for name in self.key if name not in first)) for index, first in columns}

    @cached_property
    def ciphertext_columns(self) -> tuple[str, ...]:
        """The columns that hold ciphertext."""
        return tuple(column.name for column in self.columns if column.kind is Kind.ENCRYPTED)

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(self.columns[self.positions[name]] for name in self.key)

    def key_in(self, fields: Mapping[str, Any]) -> Any:
        """The key among the fields of a row: a value, or a tuple of several."""
        return fields[self.key[0]] if len(self.key) == 1 else tuple(fields[name] for name in self.key)

    def key_at(self, row: Any) -> Any:
        """The key among the column values of a row, which are read by their places."""
        values = tuple(row[self.positions[name]] for name in self.key)
        return values[0] if len(values) == 1 else values

    def key_values(self, key: Any) -> tuple[Any, ...]:
        return (key,) if len(self.key) == 1 else tuple(key)

    def encode_key(self, row_id: Any) -> Any:
        """The key that an id stands for, in the form a store takes; a tuple if it has several columns."""
        if not self.managed:
            if len(self.key) == 1:
                return encode_one(self.name, self.key_columns[0], row_id)
            values = check_several(self.name, self.key_columns, row_id)
            return tuple(column.encode(value) for column, value in zip(self.key_columns, values, strict=True))
        if isinstance(row_id, str) and is_id(self.id_prefix, row_id):
            return str(row_id)
        fix = f"Pass an id of {self.name}, as insert and rows of {self.table.__name__} give it."
        raise wrong_id(row_id, self.name, fix)

    @property
    def id_prefix(self) -> str:
        """The beginning of the ids of a managed table's rows: its name, but for the tables of components."""
        return self.table.__id_prefix__ or self.name

    def make_rows(self, rows: Sequence[dict[str, Any]]) -> list[Table]:
        """Rows from their fields as stored. Those of a managed table are trusted, and not validated again."""
        if self.managed:
            return list(map(make_row, repeat(self.row_type), rows, repeat(self._names)))
        return [self._validate(fields) for fields in rows]

    @cached_property
    def _names(self) -> set[str]:
        return set(self.positions)

    def _validate(self, fields: dict[str, Any]) -> Table:
        row = self.row_type.__pydantic_validator__.validate_python(aware(fields), strict=False)
        row.__dict__.setdefault("id", Id(fields[self.key[0]]) if len(self.key) == 1 else self.key_in(row.__dict__))
        return cast("Table", row)

    def encode_row(self, row: Table, row_id: str, now: datetime) -> tuple[Any, ...]:
        """The column values of a row, in the form a store takes."""
        values = [row_id, now] if self.managed else []
        values += [self.encode_field(column, row) for column in self.columns[len(values) :]]
        return tuple(values)

    def encode_field(self, column: Column, row: Table) -> Any:
        """The value of one column of a row, in the form a store takes."""
        value = row.__dict__.get(column.name)
        if value is None:
            if column.optional:
                return None
            raise ValueInvalid(f"{self.name}.{column.name} cannot be None.")
        try:
            return column.encode(value)
        except (TypeError, ValueError, AttributeError) as error:
            kind = type(value).__name__
            raise ValueInvalid(f"{self.name}.{column.name}: this {kind} is not a value of its column.") from error


def make_row(table: type[Table], fields: dict[str, Any], names: set[str] | None = None) -> Table:
    """An unvalidated row of these fields; many rows may share one set of names."""
    row = _new(table)
    _set_dict(row, fields)
    _set_fields_set(row, set(fields) if names is None else names)
    _set_extra(row, None)
    _set_private(row, None)
    return row


def table_of(cls: type[Table]) -> type[Table]:
    """The table whose rows a class has: itself, or with ``stored=False`` the one that it derives from."""
    return next(one for one in cls.__mro__ if "__declared__" in vars(one))


def definition_of(table: type[Table]) -> TableDefinition:
    """A table's definition, made on first use, when all classes it refers to exist."""
    found: TableDefinition | None = getattr(table, "__dict__", {}).get("__definition__")
    return found if found is not None else _define(table)


def _define(table: type[Table]) -> TableDefinition:
    given: object = table
    if not isinstance(given, type) or not issubclass(given, Table) or given is Table:
        raise DeclarationError(f"{table!r} is not a table.", fix="Pass the class of the table, such as Booking.")
    if (stored := table_of(table)) is not table:
        raise DeclarationError(
            f"{table.__name__} has stored=False, so it is no table.", fix=f"Pass {stored.__name__}, whose rows it has."
        )
    if not table.__pydantic_complete__:
        _complete(table)
    declared = table.__declared__
    columns = [*SYSTEM_FIELDS] if declared.managed else []
    for name, info in table.model_fields.items():
        with add_place(table, name):
            columns.append(column_of(declared.sql_name, name, info))
            _check_default(table, columns[-1])
    searches = dict(_searches(table, columns))
    columns = [check_vectors(declared.sql_name, one, [*searches.values()]) for one in columns]
    definition = TableDefinition(
        table=table,
        name=declared.sql_name,
        row_type=table.__dict__.get("__row_type__") or table,
        key=declared.key,
        managed=declared.managed,
        live=declared.live,
        columns=tuple(columns),
        indexes={index.name: index for index in table.__indexes__},
        searches=searches,
        rules=_rules(table),
        positions={column.name: position for position, column in enumerate(columns)},
    )
    _check_ordered(definition)
    table.__definition__ = definition
    return definition


def _complete(table: type[Table]) -> None:
    """Look up the names of types that did not exist yet as the class was declared."""
    try:
        table.model_rebuild()
    except PydanticUndefinedAnnotation as error:
        with add_place(table):
            raise DeclarationError(
                f"Table {table.__name__}: a field's type names {error.name!r}, which does not exist in its module.",
                fix="Import it, or correct its name.",
            ) from None


def _declare(
    cls: type[Table], name: str | None, source: str | None, key: str | Sequence[str] | None, managed: bool, live: bool
) -> _Declared:
    if managed and (source or key):
        raise DeclarationError(
            f"Table {cls.__name__}: source= and key= name a table that another program owns.",
            fix="Add managed=False. A table of penstock's own has its id for a key, and may have unique indexes.",
        )
    if not managed and not (source and key):
        raise DeclarationError(f"Table {cls.__name__}: managed=False needs source= and key=.")
    columns = ("id",) if managed else check_key(cls.__name__, key, cls.model_fields)
    sql_name = source or name or snake_case(cls.__name__)
    if managed:
        check_name(f"Table {cls.__name__}", sql_name)
        if sql_name.startswith(_RESERVED_PREFIXES) or sql_name in _RESERVED_NAMES:
            raise DeclarationError(
                f"Table {cls.__name__}: the name {sql_name!r} is reserved.", fix='Give another name="…".'
            )
        for field_name in cls.model_fields:
            if field_name in SYSTEM_COLUMNS:
                raise DeclarationError(
                    f"Table {cls.__name__}: the field {field_name} is penstock's own.", fix="Choose another name."
                )
            check_name(f"Table {cls.__name__}: field", field_name)
    if len(cls.model_fields) > _MAX_COLUMNS:
        raise DeclarationError(f"Table {cls.__name__} has more than {_MAX_COLUMNS} fields.")
    return _Declared(sql_name, columns, managed, live, place_of_class(cls))


def _check_unstored(cls: type[Table], *, alone: bool) -> None:
    """Check that a class which is no table derives from one, and does not hide what that table has."""
    what = f"Table {cls.__name__}: stored=False"
    if not hasattr(cls, "__declared__"):
        raise DeclarationError(f"{what} needs a table to derive from.", fix="class Shown(Message, stored=False): …")
    if not alone:
        raise DeclarationError(f"{what} takes no other class arguments.", fix="Leave them to the table.")
    if hidden := next((name for name in SYSTEM_COLUMNS if name in cls.model_fields), None):
        raise DeclarationError(f"{what}: the field {hidden} is penstock's own.", fix="Choose another name.")


def _indexes(cls: type[Table]) -> Iterator[Index]:
    names = {*cls.model_fields, *(SYSTEM_COLUMNS if cls.__declared__.managed else ())}
    for owner in reversed(cls.__mro__):
        for name, index in vars(owner).items():
            if not isinstance(index, Index):
                continue
            with add_place(cls, name):
                check_name(f"Table {cls.__name__}: index", name)
                unknown = [column for column in index.columns if column not in names]
                if unknown:
                    raise DeclarationError(
                        f"Table {cls.__name__}: index {name} names {', '.join(unknown)}, which is no field of the "
                        "table.",
                        fix=f"Its fields are {', '.join(cls.model_fields)}.",
                    )
            yield index


def _searches(cls: type[Table], columns: list[Column]) -> Iterator[tuple[str, ColumnIndex]]:
    for owner in reversed(cls.__mro__):
        for name, index in vars(owner).items():
            if isinstance(index, ColumnIndex):
                with add_place(cls, name):
                    check_name(f"Table {cls.__name__}: {index_title(index)}", name)
                    check_search(cls.__name__, index, {column.name: column for column in columns})
                yield name, index


def _rules(cls: type[Table]) -> Rules | None:
    declared = ((name, one) for owner in reversed(cls.__mro__) for name, one in vars(owner).items())
    found = {name: one for name, one in declared if isinstance(one, Rules)}
    with add_place(cls, [*found, ""][0]):
        if len(found) > 1:
            names = ", ".join(found)
            raise DeclarationError(f"Table {cls.__name__} has rules twice: {names}.", fix="Write one Rules(…).")
    return next(iter(found.values()), None)


def _check_ordered(definition: TableDefinition) -> None:
    indexes = {f"index {index.name}": index.columns for index in definition.indexes.values()}
    for what, names in {"its key": definition.key, **indexes}.items():
        for name in names:
            with add_place(definition.table, what.rpartition(" ")[2]):
                if has := definition.column(name).order_obstacle:
                    raise DeclarationError(
                        f"Table {definition.table.__name__}: {what} contains {name}, which {has} and has no order.",
                        fix="Store what is looked for in a field of its own, such as an HMAC of the value.",
                    )


def _check_default(table: type[Table], column: Column) -> None:
    """Refuse a default that no insert could store, unless a validator of the user's own may change it first."""
    decorators = table.__pydantic_decorators__
    modes = [one.info.mode for one in decorators.field_validators.values() if {column.name, "*"} & {*one.info.fields}]
    modes += [one.info.mode for one in decorators.model_validators.values()]
    if column.info is None or column.info.default_factory or {*modes} - {"after"}:
        return
    try:
        column.default()
    except (PenstockError, TypeError, ValueError, AttributeError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise DeclarationError(
            f"Table {table.__name__}: the default of {column.name}, {column.info.default!r}, is not one of its values: "
            f"{why.rstrip('.')}.",
            fix="Correct it, or the annotation.",
        ) from error


_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_MAX_NAME = 48


def check_name(what: str, name: str) -> None:
    """Refuse names that SQL would have to quote or would cut off."""
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
        raise DeclarationError(
            f"{what} cannot be named {name!r} in SQL.",
            fix=f"Use lower-case letters, digits and underscores, at most {_MAX_NAME} of them.",
        )


def snake_case(name: str) -> str:
    """The name of a class in snake case: `RoomKey` becomes `room_key`."""
    spaced = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", spaced).lower()
