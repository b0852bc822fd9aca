"""The queries that Convex's command line asks as an administrator: the tables and their rows, and no variables.

Owns what is answered. Nobody else can name these queries. The command line shows an error as its own traceback, so
what is not there is answered as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

from penstock.app import App
from penstock.calls.run.context import QueryCtx
from penstock.functions.function import AnyFunction, QueryFunction
from penstock.transaction.pages import PaginationOptions

_FILES, _MOST_FILES = "_storage", 1000


def system_query(app: App, path: str) -> AnyFunction | None:
    """The query of a path; None if there is none."""
    return _queries(app).get(path)


@lru_cache(maxsize=16)
def _queries(app: App) -> Mapping[str, AnyFunction]:
    """The queries of an app, the same ones each time."""
    tables = {one.name: one.table for one in app.definitions()}

    async def list_tables(_ctx: QueryCtx, pagination_opts: Any) -> Any:  # noqa: ARG001 - as its callers say it
        """All tables on one page."""
        return _page({"name": name} for name in (*tables, _FILES))

    async def list_rows(
        ctx: QueryCtx, table: str, pagination_opts: PaginationOptions, order: Literal["asc", "desc"] = "desc"
    ) -> Any:
        """A page of the rows of a table."""
        if table == _FILES:
            found = await ctx.storage.list(_MOST_FILES)
            return _page((found if order == "desc" else found[::-1])[: pagination_opts.num_items])
        if table not in tables:
            return _page(())
        return await ctx.db.query(tables[table]).order(order).paginate(pagination_opts)

    async def list_variables(_ctx: QueryCtx) -> Any:
        """No variables: a program reads those of its process."""
        return []

    async def get_variable(_ctx: QueryCtx, name: str) -> Any:  # noqa: ARG001 - likewise
        """No variable."""
        return None

    made: dict[str, Callable[..., Any]] = {
        "tables:default": list_tables,
        "tableData:default": list_rows,
        "queryEnvironmentVariables:default": list_variables,
        "queryEnvironmentVariables:get": get_variable,
    }
    return {
        f"_system/cli/{path}": QueryFunction(function, public=False, name=f"penstock.convex:{function.__name__}")
        for path, function in made.items()
    }


def _page(found: Iterable[Any]) -> dict[str, Any]:
    return {"page": [*found], "isDone": True, "continueCursor": ""}
