"""The names that Alembic's autogenerate leaves to penstock: its own tables, and the tables that it manages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from penstock.config import SCHEMAS, load_config
from penstock.schema.table import Table
from penstock.store.push.migrate import load_migrations
from penstock.store.sql.dialect import qualify

_MADE = re.compile(r"create (?:table|view) (?:if not exists )?(penstock_\w+)")


def include_name(name: str | None, type_: str, parent_names: Mapping[Any, str | None]) -> bool:
    """Whether Alembic's autogenerate may compare what has this name: pass it to ``context.configure`` in ``env.py``.

    It leaves out penstock's own tables, in each schema that the settings or an imported `App` name. It also leaves out
    the managed tables of all modules that ``env.py`` has imported. Tables declared with ``managed=False`` are their
    owner's, and are compared.

    Args:
        name: The name of a schema, a table, or a part of a table; as Alembic finds it in the database.
        type_: The kind of thing, such as ``"table"``.
        parent_names: The names of the schema and the table that it belongs to.
    """
    schema = name if type_ == "schema" else parent_names.get("schema_name")
    table = name if type_ in {"table", "view"} else parent_names.get("table_name")
    known = frozenset({*SCHEMAS, load_config().schema})
    return schema not in known and (schema is not None or table not in {*_own(known), *_tables_of(Table)})


@cache
def _own(schemas: frozenset[str]) -> frozenset[str]:
    """The names of penstock's own tables on SQLite, which has no schemas."""
    made = [name for _, sql in load_migrations("sqlite") for name in _MADE.findall(sql)]
    return frozenset(qualify(name, schema) for name in made for schema in schemas)


def _tables_of(base: type[Table]) -> Iterator[str]:
    for table in base.__subclasses__():
        if table.__managed__:
            yield table.__declared__.sql_name
        yield from _tables_of(table)
