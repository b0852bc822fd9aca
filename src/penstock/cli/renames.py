"""Renamed fields while a program is being written: ``penstock dev`` asks, and renames the columns with their values.

For a database that nobody else uses. Elsewhere two releases run side by side, so there a migration file does it.
"""

from __future__ import annotations

import click

from penstock.api.outbox.views import look_at
from penstock.app import App
from penstock.cli.opening import open_store
from penstock.cli.output import say
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.schema.diff import Difference
from penstock.store.nouns.catalog import Change
from penstock.store.push.migrate import differences
from penstock.store.store import Store


async def rename_columns(app: App, config: Config) -> None:
    """Ask for each stored column that is not declared any more whether a new field of its type is the same one."""
    async with open_store(app, config) as store:
        if not await store.catalog.list_migrations():
            return  # the database is new
        await store.open(look=True)
        for change in await differences(store, app.definitions()):
            taken = set[str]()  # nobody is asked twice for one field
            for old in change.gone:
                await _rename_column(store, change, old, taken)


async def _rename_column(store: Store, change: Difference, old: str, taken: set[str]) -> None:
    for new in change.like(change.gone[old]):
        if new in taken:
            continue
        where = f"{change.table}.{old}"
        for outbox in await _find_behind(store, change.table):
            say(f"Outbox {outbox} still has changes with {old}. Once it is renamed, they fail: skip them then.")
        if click.confirm(f"{where} is not declared any more, and {new} is new. Rename the column to {new}?", err=True):
            table, column, name = map(store.dialect.quote, (change.table, old, new))
            async with store.catalog.lock() as lock:
                await lock.apply(Change(change.table, (f"alter table {table} rename column {column} to {name}",)))
            say(f"renamed: {where} is {new} now, with its values.")
            taken.add(new)
            return


async def _find_behind(store: Store, table: str) -> list[str]:
    """The outboxes that have changes of a table to deliver, which were captured with the old names of columns."""
    rows = [row for row in await store.outboxes.list() if row.plan.source == table]
    found = await look_at(store, rows, SystemClock().now(), lambda _name: None, most=1)
    return [one.name for one in found if one.messages]
