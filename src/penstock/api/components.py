"""Components: an app inside another one, with tables, functions and work of its own under a name.

Owns what `App.use` copies from the one into the other. `functions/component` says what their names are, and what the
ctx of a component finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from penstock.api.crons.crons import Crons
from penstock.api.declaring import check_says_access
from penstock.api.guests import Guests
from penstock.api.outbox.outboxes import Outboxes
from penstock.api.pools.workpool import Workpool
from penstock.api.tasks.tasks import ReactiveTasks
from penstock.api.use import Use
from penstock.errors import DeclarationError
from penstock.functions.component import SEPARATOR, Component, check_component_name, is_component_name, own_function
from penstock.functions.function import AnyFunction
from penstock.functions.httpaction import HttpAction, place_of
from penstock.functions.registry import Registry
from penstock.pools.rates import RateLimit
from penstock.schema.table import Table, TableDefinition

TABLES = "__"  # between the name of a component and the names of its tables


class Declarations(Protocol):
    """The declarations of an app."""

    registry: Registry
    events: dict[str, Any]
    pools: dict[str, Workpool]
    rate_limits: dict[str, RateLimit]
    guests: Guests
    crons: Crons
    tasks: ReactiveTasks
    outboxes: Outboxes
    components: dict[str, Component]
    requires_access: bool

    def definitions(self) -> list[TableDefinition]:
        """The definitions of its tables."""


def use_app(
    program: Declarations, app: Declarations, name: str, expose: Iterable[AnyFunction], http_prefix: str | None
) -> Component:
    """Declare all that an app declares once more in a program, under a name; see `App.use`."""
    check_component_name(name)
    if app is program:
        raise DeclarationError(f"Component {name!r} is the program itself.", fix="Pass the App of the package.")
    if not isinstance(getattr(app, "registry", None), Registry):
        raise DeclarationError(f"Component {name!r}: {app!r} is no App.", fix="Pass the App of the package.")
    if name in program.components:
        raise DeclarationError(f"There are two components called {name!r}.", fix="Give one of them another name.")
    given: object = expose
    if not isinstance(given, Iterable):
        raise DeclarationError(f"Component {name!r}: expose= takes functions, not {expose!r}.", fix="Write expose=[…].")
    exposed, own = [*expose], Component(name)
    components: dict[Component | None, Component] = {None: own}
    components |= {one: Component(own.prefix(path)) for path, one in app.components.items()}
    use = Use(own, components, program.guests)
    _use_tables(use, app)
    for pool in app.pools.values():
        own.pools[pool] = program.pools[own.prefix(pool.name)] = use.pool(pool)
    for inner in app.components.values():
        use.components[inner].pools |= {raw: own.pools[pool] for raw, pool in inner.pools.items()}
    program.rate_limits.update({own.prefix(one): policy for one, policy in app.rate_limits.items()})
    _use_events(program.events, app.events, name)
    _use_functions(use, program, app, exposed)
    prefix = _path(http_prefix, name)
    for action in app.registry.http if prefix is not None else ():
        program.registry.add_http(_at(use.copy(action, public=True), f"{prefix}{action.place.path}"))
    program.crons.adopt(app.crons, use)
    program.tasks.adopt(app.tasks, use)
    program.outboxes.adopt(app.outboxes, use)
    program.components |= {one.name: one for one in use.components.values()}
    app.guests.component = name
    return own


def _use_tables(use: Use, app: Declarations) -> None:
    owners = {table: one for one in app.components.values() for table in one.tables.values()}
    for definition in app.definitions():
        table = definition.table
        if not definition.managed:
            raise DeclarationError(
                f"Component {use.own.name!r}: {table.__name__} is a table of another program (managed=False), and a "
                "component has its own tables only.",
                fix="Read it in a function of the program, and pass the component what it needs.",
            )
        component = use.components[owners.get(table)]
        use.tables[table] = twin = _twin_of(table, use.own.name + TABLES)
        component.tables |= {definition.row_type: twin, twin: twin}


def _use_functions(use: Use, program: Declarations, app: Declarations, exposed: Sequence[AnyFunction]) -> None:
    tasks = {one.function for one in app.tasks}
    for function in app.registry:
        if function not in tasks:
            copy = use.copy(function, public=function in exposed and function.public)
            if program.requires_access:
                check_says_access(copy)
            program.registry.add(copy)
    for function in exposed:
        if not getattr(own_function(use.own, function, None), "public", False):
            raise DeclarationError(
                f"Component {use.own.name!r}: expose= takes public functions of its app, not {function!r}.",
                fix="Name functions that it declares with query, mutation or action.",
            )


def _use_events(known: dict[str, Any], others: Mapping[str, Any], name: str) -> None:
    for word, event in others.items():
        if known.setdefault(word, event) is not event:
            raise DeclarationError(
                f"The program and its component {name!r} both declare an event {word!r}.", fix="Rename one of them."
            )


def _path(prefix: object, name: str) -> str | None:
    if prefix is not None and not (isinstance(prefix, str) and prefix.startswith("/")):
        raise DeclarationError(
            f"Component {name!r}: http_prefix is a path, not {prefix!r}.", fix=f'Write http_prefix="/{name}".'
        )
    return None if prefix is None else prefix.rstrip("/")


def _at(action: Any, path: str) -> HttpAction[Any, ..., Any, Any]:
    action.place = place_of(action.place.method, path)
    found: HttpAction[Any, ..., Any, Any] = action
    return found


def foreign_tables(components: Iterable[Component], own: Iterable[type[Table]]) -> dict[type[Table], str]:
    """The tables that a program does not have itself, as its components use them; each with a name of such a one."""
    pairs = ((one.name, table) for one in components for table, twin in one.tables.items() if table is not twin)
    mine = {*own}
    return {table: name for name, table in pairs if table not in mine}


def component_of(table: str) -> str | None:
    """The component of a stored table, by its name; None if it is of none."""
    *path, name = table.split(TABLES)
    return SEPARATOR.join(path) if path and name and all(map(is_component_name, path)) else None


def count_declarations(app: Declarations) -> tuple[int, ...]:
    """How much an app declares: it tells whether something came after its use."""
    nouns = (app.registry, app.registry.http, app.crons.functions(), app.tasks, app.outboxes)
    named = (app.pools, app.rate_limits, app.events, app.components)
    return tuple(len([*one]) for one in (*nouns, *named))


def _twin_of(table: type[Table], prefix: str) -> type[Table]:
    """Declare a table like another, in which a component keeps its rows; these are of the other's class.

    Args:
        table: The other table, which penstock manages.
        prefix: The beginning of the twin's SQL name.
    """
    rows, name = table.__row_type__ or table, prefix + table.__declared__.sql_name
    names = {"__module__": table.__module__, "__qualname__": f"{name}.{rows.__name__}", "__row_type__": rows}
    metaclass: Any = type(rows)
    twin: type[Table] = metaclass(rows.__name__, (rows,), names, name=name, live=table.__declared__.live)
    return twin
