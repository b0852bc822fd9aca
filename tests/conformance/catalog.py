"""What a store promises of its catalog, as far as every store must: tables are known, and changed one at a time."""

from __future__ import annotations

import asyncio

from conformance.bench import Bench, Note, Suite, story
from penstock.schema.table import definition_of
from penstock.store.push.migrate import push


class Catalog(Suite):
    """`store.nouns.Catalog`."""

    @story
    async def test_a_table_is_known_as_it_was_made_and_its_rows_are_counted(self, bench: Bench) -> None:
        name = definition_of(Note).name
        stored = await bench.store.catalog.read_tables([name, "no_such_table"])
        assert set(stored) == {name}
        assert set(stored[name].columns) == {"id", "creation_time", "title", "amount"}
        await bench.write_notes(a=1, b=2, c=3)
        assert await bench.store.catalog.count(f"select count(*) from {bench.notes.table} where amount > 1") == 2

    @story
    async def test_migrations_are_applied_once_however_many_push(self, bench: Bench) -> None:
        stores = [await bench.another() for _ in range(4)]
        applied = await bench.store.catalog.list_migrations()
        assert applied
        await asyncio.gather(*(push(store, [definition_of(Note)]) for store in stores))
        assert await bench.store.catalog.list_migrations() == applied

    @story
    async def test_one_at_a_time_changes_the_schema(self, bench: Bench) -> None:
        other, inside = await bench.another(), 0

        async def change(store: object) -> None:
            nonlocal inside
            async with store.catalog.lock() as lock:  # type: ignore[attr-defined]
                inside += 1
                assert inside == 1
                await lock.list_migrations()
                inside -= 1

        await asyncio.gather(*(change(store) for store in (bench.store, other) * 3))
