"""Data: tables, their rows with filters, and one row, to be changed by people who may."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from penstock.api.live import Watch
from penstock.dashboard.forms import BEFORE, Input, diff, entries, form_of, inputs_of_row, read_all, wrong_fields
from penstock.dashboard.mask import is_secret, mask, secrets_in
from penstock.dashboard.page import Act, Answer, Page, Role, View
from penstock.dashboard.rows import LISTED, Row, condition_of, key_in, rows_of
from penstock.errors import PenstockError, ValueInvalid
from penstock.reactive.expression import Condition, Path, reads
from penstock.schema.encoder import MASKED
from penstock.schema.fields import Column, Kind
from penstock.schema.table import TableDefinition
from penstock.server.requests import Refused
from penstock.store.session import reading
from penstock.store.sql.conditions import query_sql
from penstock.store.sql.dialect import ALL

_MOST_COUNTED = 10_000
_FEW = 8  # numbers of a vector
_LONGEST = 10_000  # characters of a value that can be edited in its form
_ORDERS = {"desc": "newest first", "asc": "oldest first"}
_OPERATORS = {
    "==": "{0} == {1}",
    "!=": "{0} != {1}",
    "<": "{0} < {1}",
    "<=": "{0} <= {1}",
    ">": "{0} > {1}",
    ">=": "{0} >= {1}",
    "contains": "contains({0}, {1})",
    "starts with": "{0}.startswith({1})",
    "is none": "{0} is None",
    "is not none": "{0} is not None",
}
_MADE = {
    Kind.DATETIME: "datetime.fromisoformat({!r})",
    Kind.DATE: "date.fromisoformat({!r})",
    Kind.DECIMAL: "Decimal({!r})",
    Kind.UUID: "UUID({!r})",
}


async def _load(view: View) -> Mapping[str, Any]:
    definitions = sorted(view.backend.app.definitions(), key=lambda one: one.name)
    tables = []
    async with reading(view.backend.engine.store.begin_read) as session:
        for one in definitions:
            statements = view.backend.engine.statements.of(one.table, one)
            ((count,),) = await session.fetch(statements.count(), (_MOST_COUNTED + 1,))
            tables.append((one, f"{count:,}" if count <= _MOST_COUNTED else f"{_MOST_COUNTED:,}+"))
    return {"tables": tables}


# ----- one table


def _table(view: View) -> TableDefinition:
    try:
        return rows_of(view.backend.app).definition(view.require("table"))
    except ValueInvalid as error:
        raise Refused(404, "TableNotFound", str(error)) from error


def _filter(view: View, definition: TableDefinition) -> str | None:
    """The filter that the URL says: a text, and the choices next to it."""
    text, name = view.word("where"), view.word("field")
    if name is None:
        return text
    operator, value = view.word("operator") or "==", view.words.get("value", "")
    said = _OPERATORS.get(operator)
    if said is None:
        raise ValueInvalid(f"There is no operator {operator!r}.")
    chosen = said.format(name, _literal(definition.column(name), value))
    return chosen if text is None else f"({text}) and {chosen}"


def _literal(column: Column, value: str) -> str:
    """A typed value as a filter says it."""
    if (made := _MADE.get(column.kind)) is not None:
        return made.format(value.strip())
    if column.kind is Kind.BOOLEAN:
        return str(value.strip().lower() in {"true", "1", "yes"})
    if column.kind in {Kind.INTEGER, Kind.REAL}:
        return value.strip() or "None"
    return repr(value)


def _query(view: View, definition: TableDefinition) -> tuple[str, str | None, str | None, str]:
    """The arguments of the query that reads the page."""
    where = _filter(view, definition)
    if where is not None:
        _check_shown(condition_of(definition, where), view.secrets | secrets_in(definition.table))
    return definition.name, where, view.word("after"), "asc" if view.word("order") == "asc" else "desc"


def _check_shown(condition: Condition, secrets: AbstractSet[str]) -> None:
    """Refuse a filter that would tell what is hidden, guess by guess."""
    for one in reads(condition):
        for name in (one.column, *(one.steps if isinstance(one, Path) else ())):
            if is_secret(str(name), secrets):
                raise ValueInvalid(f"{name} is hidden, so no filter can read it.")


async def _load_table(view: View) -> Mapping[str, Any]:
    definition = _table(view)
    shown: dict[str, Any] = {"rows": [], "older": None, "sql": None, "where": view.word("where"), "wrong": None}
    try:
        asked = _, where, after, order = _query(view, definition)
        found, cursor = view.answer or await view.backend.run_query(rows_of(view.backend.app).page, *asked)
        kept = {"where": where, "order": view.word("order")}
        older = {name: value for name, value in {**kept, "after": cursor}.items() if value}
        secrets = view.secrets | secrets_in(definition.table)
        rows = [(key_in(definition, one), mask(_shorten(one), secrets)) for one in found]
        shown |= {"rows": rows, "older": urlencode(older) if cursor else None, "where": where}
        shown["sql"] = _sql(view, definition, where, order, after is not None)
    except PenstockError as error:
        shown["wrong"] = str(error)
    return {
        "table": definition,
        "columns": [one.name for one in definition.columns],
        "operators": list(_OPERATORS),
        "orders": _ORDERS,
        "order": "asc" if view.word("order") == "asc" else "desc",
        "is_part": view.word("after") is not None,
        **shown,
    }


def _sql(view: View, definition: TableDefinition, where: str | None, order: str, follows: bool) -> str:
    statements = view.backend.engine.statements.of(definition.table, definition)
    condition = ALL
    if where is not None:
        condition, _ = query_sql(condition_of(definition, where), definition, statements.dialect, statements.table)
    statement = statements.scan((), definition.key, order, limit=LISTED, indexed=True, where=condition)
    parameters = ", ".join(map(repr, (*condition.args, LISTED + 1)))
    more = "\n-- and after the last row of the page before" if follows else ""
    return f"{statement.sql}{more}\n-- parameters: {parameters}"


def _watch_table(view: View) -> Watch[Any] | None:
    with suppress(PenstockError):  # which the page tells
        return view.backend.live(rows_of(view.backend.app).page, *_query(view, _table(view)))
    return None


# ----- one row


def _shorten(row: Row) -> Row:
    """A row with the beginnings of its vectors."""
    return {name: _begin(value) if _is_vector(value) else value for name, value in row.items()}


def _is_vector(value: Any) -> bool:
    return isinstance(value, list) and len(value) > _FEW and all(isinstance(one, float) for one in value)


def _begin(vector: list[float]) -> str:
    return f"[{', '.join(map(str, vector[:_FEW]))}, …] of {len(vector):,} numbers"


async def _load_row(view: View) -> Mapping[str, Any]:
    definition, key = _table(view), view.require("key")
    row, seen = view.answer or await _read(view, definition)
    secrets = view.secrets | secrets_in(definition.table)
    shown, inputs = mask(_shorten(row), secrets), inputs_of_row(definition.table, view.secrets, is_new=False)
    texts = {one.name: "" if _hides(shown[one.name]) else one.text(row[one.name]) for one in inputs}
    before = {
        one.name: texts[one.name] if len(texts[one.name]) <= _LONGEST else ""
        for one in inputs
        if one.shows != "checkbox" or row[one.name]
    }
    edited = diff(inputs, view.words)
    kept = before.keys() - {one.name for one in edited}
    return {
        "table": definition,
        "key": key,
        "row": shown,
        "before": before,
        **form_of(inputs, view.words),
        "typed": {name: before[name] for name in kept} | entries(edited, view.words),
        "is_sent": True,
        # A refused form keeps the versions that somebody has seen, unless it was refused for newer ones.
        "seen": view.words.get("seen") or json.dumps(seen),
        "fresh": json.dumps(seen),
        "newer": False,
    }


async def _read(view: View, definition: TableDefinition) -> tuple[Row, dict[str, str]]:
    """The row of the page, and the versions of its columns."""
    row, key = rows_of(view.backend.app).row, view.require("key")
    found = await view.backend.run_query(row, definition.name, key, view.salt)
    if found is None:
        raise Refused(404, "RowNotFound", f"Table {definition.name} has no such row. It may have been deleted.")
    return found[0], found[1]


def _hides(value: Any) -> bool:
    """Whether some of a value is hidden, so that nobody can edit it here without losing that."""
    if isinstance(value, dict | list):
        return any(map(_hides, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and MASKED in value


def _watch_row(view: View) -> Watch[Any]:
    return view.backend.live(rows_of(view.backend.app).row, _table(view).name, view.require("key"), "")


async def _load_new(view: View) -> Mapping[str, Any]:
    definition = _table(view)
    inputs = inputs_of_row(definition.table, view.secrets, is_new=True)
    return {"table": definition, **form_of(inputs, view.words)}


async def _write(view: View, *, is_new: bool) -> str | Answer:
    definition = _table(view)
    values, wrong = _values(view, definition, is_new=is_new)
    if wrong:
        return Answer("Not done: a value is no JSON.", {"wrong": wrong})
    if not values and not is_new:
        return "Nothing was changed."
    key = None if is_new else view.require("key")
    try:
        made = await _run(view, definition, key, values)
    except PenstockError as error:
        wrong = wrong_fields(error, definition.table.model_fields)
        return Answer(f"Not done: {error}", {"wrong": wrong, "error": None if wrong else str(error)})
    if isinstance(made, Answer):
        return made
    path = f"/data/{quote(definition.name)}/row?{urlencode({'key': made})}"
    return Answer("The row is inserted.", path=path) if is_new else "The row is changed."


async def _run(view: View, definition: TableDefinition, key: str | None, values: Any) -> str | Answer:
    """Write a row; its key, or what to tell if it is newer than the form has shown."""
    seen = {} if key is None else await _stamps(view, definition)
    write = rows_of(view.backend.app).write
    made: str | list[str] = await view.backend.run_mutation(write, definition.name, key, values, seen, view.salt)
    if not isinstance(made, list):
        return made
    what = ", ".join(made)
    told = f"Not done: {what} has changed since you opened the form. Look at the row as it is now, and decide again."
    return Answer(told, {"error": told, "newer": True})


async def _stamps(view: View, definition: TableDefinition) -> dict[str, str]:
    """The versions of columns that the form has shown: as it says, or else as its texts say."""
    if "seen" in view.words:
        with suppress(ValueError, TypeError):
            return dict(json.loads(view.words["seen"]))
    row, seen = await _read(view, definition)
    for one in inputs_of_row(definition.table, view.secrets, is_new=False):
        text, now = view.words.get(BEFORE + one.name), one.text(row[one.name])
        with suppress(ValueError):  # of a text that no page has shown
            if text is not None and _before(one, text) != (_before(one, now) if now else None):
                seen[one.name] = ""
    return seen


def _before(one: Input, text: str) -> Any:
    """The value that an input has shown, by the text that a form sends: forms have their own way to end a line."""
    if one.shows in {"text", "date"}:
        return text.replace("\r\n", "\n").replace("\r", "\n") or None
    return json.loads(text)


def _values(view: View, definition: TableDefinition, *, is_new: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of the form, or the ones that were changed in it."""
    inputs = inputs_of_row(definition.table, view.secrets, is_new=is_new)
    return read_all(inputs if is_new else diff(inputs, view.words), view.words)


def _about(view: View, *, is_new: bool | None = None) -> Mapping[str, Any]:
    """The entry of the audit log: values that are no secrets by their names or their types."""
    definition = _table(view)
    about: dict[str, Any] = {"table": definition.name}
    if not is_new:
        about["row"] = view.require("key")
    if is_new is not None:
        values, _ = _values(view, definition, is_new=is_new)
        about["values"] = mask(values, secrets_in(definition.table).union(definition.ciphertext_columns))
    return about


async def _delete(view: View) -> Answer:
    definition = _table(view)
    newer = await _run(view, definition, view.require("key"), None)
    return newer if isinstance(newer, Answer) else Answer("The row is deleted.", path=f"/data/{quote(definition.name)}")


PAGES = (
    Page("/data", "Data", "data.html", _load, {}),
    Page("/data/{table}", "Table", "table.html", _load_table, {}, above="/data", watch=_watch_table),
    Page(
        "/data/{table}/row",
        "Row",
        "row.html",
        _load_row,
        {
            "edit": Act(partial(_write, is_new=False), Role.edit, about=partial(_about, is_new=False)),
            "delete": Act(_delete, Role.edit, sure="Delete this row?", about=_about),
        },
        above="/data",
        watch=_watch_row,
    ),
    Page(
        "/data/{table}/new",
        "New row",
        "new_row.html",
        _load_new,
        {"insert": Act(partial(_write, is_new=True), Role.edit, about=partial(_about, is_new=True))},
        above="/data",
    ),
)
