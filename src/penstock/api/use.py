"""One use of an app in a program while it is declared: its names, and the copies of functions, tables and pools."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from penstock.api.guests import Guests
from penstock.api.pools.workpool import Workpool
from penstock.errors import DeclarationError
from penstock.functions.component import Component
from penstock.functions.function import AnyFunction
from penstock.jobs.job import DEFAULT_POOL
from penstock.schema.table import Table, TableDefinition, definition_of


class Use:
    """The copies that are made of the declarations of an app."""

    def __init__(self, own: Component, components: Mapping[Component | None, Component], guests: Guests) -> None:
        self.own = own  # the component
        self.components = components  # the components of the program, by the ones of the app; its own under None
        self.functions: dict[AnyFunction, AnyFunction] = {}  # the copies of its functions
        self.tables: dict[type[Table], type[Table]] = {}  # the twins of its tables
        self._guests = guests

    def name(self, noun: str, name: str, known: Container[str]) -> str:
        """The name in the program of a thing of the app; `DeclarationError` if the program has one of that name."""
        found = self.own.prefix(name)
        if found in known:
            raise DeclarationError(
                f"The program and its component {self.own.name!r} both have a {noun} called {found!r}.",
                fix="Give one of them another name.",
            )
        return found

    def pool_name(self, name: str) -> str:
        """The name of a pool of the app; jobs without a pool have none of a component's."""
        return name if name == DEFAULT_POOL else self.own.prefix(name)

    def pool(self, pool: Workpool) -> Workpool:
        """The copy of a pool, with its options."""
        given, group = pool.definition, pool.definition.group
        definition = replace(
            given, name=self.own.prefix(given.name), group=None if group is None else self.own.prefix(group)
        )
        return pool.within(definition, self._guests, lambda function: self.functions.get(function, function))

    def definition(self, definition: TableDefinition) -> TableDefinition:
        """The definition of a table's twin."""
        return definition_of(self.tables[definition.table])

    def copy(self, function: Any, *, public: bool = False) -> Any:
        """The copy of a function, which the code of its component means by it."""
        known = self.functions.get(function)
        if known is not None:
            return known
        component, limit = self.components[function.component], function.rate_limit
        limit = None if limit is None else self.own.prefix(limit)
        copy = function.within(component, self.own.prefix(function.name), limit, public=public)
        self.functions[function] = self.own.functions[function] = copy
        raw = [] if function.component is None else function.component.functions.items()
        component.functions |= {one: copy for one, known in raw if known is function}
        return copy
