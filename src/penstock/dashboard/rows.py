"""Rows of tables, for the page Data: read by watched queries, and written through the same door as any function's.

Owns these functions, which no caller from outside can name. Leaves forms to `pages.data`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json, to_jsonable_python

from penstock.app import App
from penstock.calls.run.context import MutationCtx, QueryCtx
from penstock.errors import ValueInvalid
from penstock.functions.function import MutationFunction, QueryFunction
from penstock.reactive.expression import Condition
from penstock.reactive.filtertext import TextFilter
from penstock.reactive.tracing import trace_filter
from penstock.schema.table import Table, TableDefinition
from penstock.transaction.pages import PaginationOptions

LISTED = 50
_READ = 20_000  # rows at most among which Python chooses the ones that a page shows

Row = Mapping[str, Any]
_Values: TypeAlias = dict[str, Any] | None
_Seen: TypeAlias = dict[str, str]
_Query = QueryFunction[Any, ..., Any, Any]
_Mutation = MutationFunction[Any, ..., Any, Any]


class TableRows:
    """Reads and writes the tables of one app. All values are as JSON has them; `key` is the text of a row's key."""

    def __init__(self, app: App) -> None:
        self._definitions = {one.name: one for one in app.definitions()}

        async def rows(ctx: QueryCtx, table: str, where: str | None, cursor: str | None, order: str) -> Any:
            definition = self.definition(table)
            scan = ctx.db.query(definition.table).order("asc" if order == "asc" else "desc")
            if where is not None:
                scan = scan._matching(condition_of(definition, where))  # noqa: SLF001 - no step of users
            found = await scan.paginate(PaginationOptions(num_items=LISTED, cursor=cursor, maximum_rows_read=_READ))
            return [as_json(definition, one) for one in found.page], None if found.is_done else found.continue_cursor

        async def row(ctx: QueryCtx, table: str, key: str, salt: str) -> Any:
            definition = self.definition(table)
            found = await ctx.db.get(definition.table, key_of(definition, key))
            return None if found is None else (as_json(definition, found), versions(definition, found, salt))

        async def write(ctx: MutationCtx, table: str, key: str | None, values: _Values, seen: _Seen, salt: str) -> Any:
            definition = self.definition(table)
            if key is None:
                return text_of_key(await ctx.db.insert(_row_of(definition, values or {})))
            found = await ctx.db.get(definition.table, key_of(definition, key))
            if found is not None and (newer := _newer(versions(definition, found, salt), seen, values)):
                return newer
            if values is None:
                return await ctx.db.delete(definition.table, key_of(definition, key))
            await ctx.db.patch(definition.table, key_of(definition, key), **_check(definition, values))
            return key

        # rows, newest first: the rows, and the cursor after them or None
        self.page: _Query = QueryFunction(rows, public=False, name="penstock.dashboard:rows")
        # one row with the versions of its columns, hashed with a salt; or None
        self.row: _Query = QueryFunction(row, public=False, name="penstock.dashboard:row")
        # changes columns of the row with a key; deletes it if there are no values; without a key, inserts a row.
        # Returns the key; or, with nothing done, the list of columns that are newer than a form has `seen`
        self.write: _Mutation = MutationFunction(write, public=False, name="penstock.dashboard:write")

    def definition(self, name: str) -> TableDefinition:
        """A table by its name in SQL."""
        found = self._definitions.get(name)
        if found is None:
            raise ValueInvalid(f"The app has no table {name!r}.")
        return found


@lru_cache(maxsize=16)
def rows_of(app: App) -> TableRows:
    """The functions of an app, the same ones each time, so that viewers share what they watch."""
    return TableRows(app)


def condition_of(definition: TableDefinition, text: str) -> Condition:
    """The condition that a filter says, as text."""
    return trace_filter(definition, TextFilter(definition, text), "The filter")


def as_json(definition: TableDefinition, row: Table) -> Row:
    """The columns of a row."""
    return {one.name: to_jsonable_python(row.__dict__.get(one.name), **_JSON) for one in definition.columns}


def versions(definition: TableDefinition, row: Table, salt: str) -> dict[str, str]:
    """For each column a hash of its stored value. It tells values apart, and with a secret salt nothing else."""
    found = dict[str, str]()
    for one in definition.columns:
        value = row.__dict__.get(one.name)
        text = repr(None if value is None else one.encode(value)).encode("utf-8", "surrogatepass")
        found[one.name] = blake2b(text, key=salt.encode(), digest_size=9).hexdigest()
    return found


def _newer(now: Mapping[str, str], seen: Mapping[str, str], values: Mapping[str, Any] | None) -> list[str]:
    """The columns that values would overwrite with another version than was seen, if anything was; all for none."""
    return [name for name in (now if values is None else values) if seen and seen.get(name) != now.get(name)]


def text_of_key(key: Any) -> str:
    """A key as a link has it: of several columns an array of JSON."""
    plain = to_jsonable_python(key, **_JSON)
    return plain if isinstance(plain, str) else json.dumps(plain)


def key_in(definition: TableDefinition, row: Row) -> str:
    """The key of a row as a link has it."""
    return text_of_key(definition.key_in(row))


def key_of(definition: TableDefinition, text: str) -> Any:
    """The key that a link says."""
    if len(definition.key) == 1:
        return text
    try:
        found = from_json(text)
    except ValueError as error:
        raise ValueInvalid("The key of this table is an array of JSON.") from error
    return tuple(found) if isinstance(found, list) else found


def _row_of(definition: TableDefinition, values: Mapping[str, Any]) -> Table:
    try:
        row: Table = definition.table.__pydantic_validator__.validate_json(
            to_json(values), strict=None if definition.managed else False
        )
    except ValidationError as error:
        raise ValueInvalid(f"The row does not fit table {definition.name}.") from error
    return row


def _check(definition: TableDefinition, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of columns as Python has them. What the whole row must be is checked when it is written."""
    found, wrong = dict[str, Any](), list[Any]()
    for name, value in values.items():
        info = definition.column(name).info
        annotation: Any = None if info is None else info.annotation
        # As a part of a list, since the settings do not bear on a class by itself.
        adapter: TypeAdapter[list[Any]] = TypeAdapter(list[annotation], config=_CONFIG)
        try:
            (found[name],) = adapter.validate_json(to_json([value]))
        except ValidationError as error:
            wrong += [{"loc": (name,), "msg": one["msg"]} for one in error.errors(include_url=False)]
    if wrong:
        raise ValueInvalid(f"The values do not fit table {definition.name}.", errors=wrong)
    return found


_JSON: Any = {"bytes_mode": "base64", "inf_nan_mode": "constants", "fallback": str}
_CONFIG: Any = {"strict": True, "val_json_bytes": "base64"}
