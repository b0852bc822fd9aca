"""Vector search: how long it takes, and how many of the nearest rows it finds.

``large_vectors_wide_…``: 10,000 rows of 1,536 numbers, searched without filters.

``large_vectors_…``: 100,000 rows of 384 numbers, searched without filters and with ones that keep a half, a twentieth
and a five-hundredth of the rows. Recall is the part of the ten nearest rows, by all scores, that a search finds.
Vectors lie around 1,000 centers, as those of texts do around their subjects.
"""

from __future__ import annotations

import json
import statistics
import time
import types
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import numpy as np

from benchmarks.databases import StoreName, load
from benchmarks.harness import Bar, Bench, Benchmark, plain, spread
from penstock import App, Config, QueryCtx, Table, VectorIndex
from penstock.api.searches import fill_searches
from penstock.changes.searches import searches_of
from penstock.schema.ids import format_id
from penstock.schema.table import definition_of
from penstock.store.sqlite.dialect import encode_datetime

_PARTS = {"half": 2, "twentieth": 20, "few": 500}
_CENTERS, _NOISE, _LIMIT, _SEARCHES = 1_000, 1.0, 10, 100
_LATE: dict[StoreName, float] = {"postgres": 0.03, "sqlite": 0.06}
_RECALL = 0.95


def _table(dimensions: int | None) -> Any:
    """A table of texts, with a vector index if it has dimensions."""
    space: dict[str, Any] = {
        "__module__": __name__,
        "__annotations__": {**dict.fromkeys(_PARTS, int), "embedding": list[float]},
    }
    if dimensions is not None:
        space["by_meaning"] = VectorIndex("embedding", dimensions=dimensions, filters=tuple(_PARTS))
    return types.new_class("Text", (Table,), {}, lambda made: made.update(space))


def _vectors(count: int, dimensions: int, seed: int) -> Any:
    """Vectors of length one around centers, which are the same for each seed."""
    centers = np.random.default_rng(0).standard_normal((_CENTERS, dimensions), dtype=np.float32)
    dice = np.random.default_rng(seed)
    made = centers[dice.integers(_CENTERS, size=count)]
    made += _NOISE * dice.standard_normal((count, dimensions), dtype=np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


async def measure(bench: Bench, store: StoreName, rows: int, dimensions: int) -> None:
    """Hold the times and the recall of searches to their bars."""
    vectors, wanted = _vectors(rows, dimensions, 1), _vectors(_SEARCHES, dimensions, 2)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bench.databases.fresh(store))
        config = Config(database=url)
        async with App(tables=[_table(None)]).open(config=config, push_schema=True) as backend:
            now = backend.engine.clock.now()
        await load(url, "text", ["id", "creation_time", *_PARTS, "embedding"], _rows(store, now, vectors))
        table = _table(dimensions)
        app = App(name="vectors", tables=[table])

        @app.query
        async def find(ctx: QueryCtx, vector: list[float], filters: dict[str, int]) -> list[str]:
            found = await ctx.vector_search(table.by_meaning, vector, limit=_LIMIT, **filters)
            return [hit.id for hit in found]

        backend = await stack.enter_async_context(app.open(config=config, push_schema=True))
        begun, used = time.perf_counter(), time.process_time()
        await fill_searches(backend.engine.store, searches_of([definition_of(table)]))
        took, spent = time.perf_counter() - begun, time.process_time() - used
        bench.row(f"{rows} rows indexed in {plain(took)} s", f"{plain(spent)} s of this process")
        scores = wanted @ vectors.T
        for name, part in {"all": 1, **_PARTS}.items():
            filters, nearest = {} if part == 1 else {name: 0}, np.arange(0, rows, part)
            taken, cpu, hits = list[float](), list[float](), 0
            await backend.run_query(find, [*map(float, wanted[0])], filters)
            for number, vector in enumerate(wanted):
                given = [*map(float, vector)]
                begun, used = time.perf_counter(), time.process_time()
                found = await backend.run_query(find, given, filters)
                taken.append(time.perf_counter() - begun)
                cpu.append(time.process_time() - used)
                best = nearest[np.argsort(-scores[number][nearest])[:_LIMIT]]
                hits += len({*found} & {format_id("text", int(one)) for one in best})
            bench.row(spread(f"{name} ms", [1e3 * one for one in taken]), spread("cpu ms", [1e3 * one for one in cpu]))
            recall = hits / len(wanted) / min(_LIMIT, len(nearest))
            bench.hold(f"{name}_recall", recall, Bar(at_least=_RECALL))
            if rows <= bench.sizes.rows:
                bench.hold(f"{name}_p95", statistics.quantiles(taken, n=20)[-1], Bar(at_most=_LATE[store]))


def _rows(store: StoreName, now: Any, vectors: Any) -> Iterator[tuple[Any, ...]]:
    at = now if store == "postgres" else encode_datetime(now)
    for number, vector in enumerate(vectors):
        parts = (number % part for part in _PARTS.values())
        yield (format_id("text", number), at, *parts, json.dumps([*map(float, vector)]))


async def small(bench: Bench, store: StoreName) -> None:
    """Measure long vectors."""
    await measure(bench, store, bench.sizes.rows, 1_536)


async def large(bench: Bench, store: StoreName) -> None:
    """Measure many vectors."""
    await measure(bench, store, bench.sizes.searched // 10, 384)


_STORES: tuple[StoreName, ...] = ("postgres", "sqlite")
BENCHMARKS = (
    *(Benchmark(f"large_vectors_wide_{store}", partial(small, store=store)) for store in _STORES),
    *(Benchmark(f"large_vectors_{store}", partial(large, store=store)) for store in _STORES),
)
