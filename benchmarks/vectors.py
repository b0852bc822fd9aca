"""Vector search: how long it takes, and how many of the nearest rows it finds.

``large_vectors_wide_…``: 10,000 rows of 1,536 numbers, searched without filters.

``large_vectors_…``: 100,000 rows of 384 numbers, searched without filters and with ones that keep a half, a twentieth
and a five-hundredth of the rows. Recall is the part of the ten nearest rows, by all scores, that a search finds.
Vectors lie around 1,000 centers, as those of texts do around their subjects.

``large_hard_vectors_…``: the same of vectors that are harder to tell apart, see `_HARD`. A twentieth of the rows are
deleted and others come, before the searches, and one of each between them.
"""

from __future__ import annotations

import json
import statistics
import time
import types
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import numpy as np

from benchmarks.databases import StoreName, load
from benchmarks.harness import Bar, Bench, Benchmark, plain, spread
from penstock import App, Config, Id, MutationCtx, QueryCtx, Table, VectorIndex
from penstock.api.searches import fill_searches
from penstock.changes.searches import searches_of
from penstock.schema.ids import format_id
from penstock.schema.table import definition_of
from penstock.services.indexer import Indexer
from penstock.store.sqlite.dialect import encode_datetime

_PARTS = {"half": 2, "twentieth": 20, "few": 500}
_CENTERS, _NOISE, _LIMIT, _SEARCHES = 1_000, 1.0, 10, 100
_LATE: dict[StoreName, float] = {"postgres": 0.03, "sqlite": 0.06}
_RECALL = 0.95
_CHANGED, _AT_ONCE = 20, 250  # a twentieth of the rows, in mutations of so many


def _gaussian(dice: Any, count: int, size: int) -> Any:
    return dice.standard_normal((count, size), dtype=np.float32)


def _overlapping(dice: Any, count: int, size: int) -> Any:
    """Rows of fifty subjects that lie near one another."""
    subjects = np.random.default_rng(0).standard_normal((50, size), dtype=np.float32)
    return 0.3 * subjects[dice.integers(50, size=count)] + _gaussian(dice, count, size)


def _duplicates(dice: Any, count: int, size: int) -> Any:
    """Thousands of texts, each in many versions that hardly differ."""
    texts = np.random.default_rng(0).standard_normal((2_000, size), dtype=np.float32)
    return texts[dice.integers(2_000, size=count)] + 0.02 * _gaussian(dice, count, size)


def _unnormalised(dice: Any, count: int, size: int) -> Any:
    """Lengths from a thousandth to thousands, and two numbers that are large in each row, as some models give them."""
    made = _gaussian(dice, count, size)
    made[:, :2] += (-12, 8)
    return made * np.exp(dice.uniform(-7, 7, (count, 1)).astype(np.float32))


_HARD: dict[str, Callable[[Any, int, int], Any]] = {
    "gaussian": _gaussian,
    "overlapping": _overlapping,
    "duplicates": _duplicates,
    "unnormalised": _unnormalised,
    "correlated": _overlapping,  # and filters that go with the first number
}


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


def _parts_of(shape: str, vectors: Any) -> Any:
    """The values of the filters of rows: zero for a half, a twentieth and a five-hundredth of them."""
    order = np.argsort(np.argsort(vectors[:, 0])) if shape == "correlated" else np.arange(len(vectors))
    many = len(vectors)
    return [
        [int(at * part // many if shape == "correlated" else at % part) for part in _PARTS.values()] for at in order
    ]


async def hard(bench: Bench, store: StoreName, shape: str) -> None:
    """Hold the recall to its bar where vectors are hard to tell apart, and rows come and go."""
    rows, size = bench.sizes.searched // 10, 384
    changed = rows // _CHANGED
    vectors = _HARD[shape](np.random.default_rng(1), rows + changed + 4 * _SEARCHES, size)
    wanted = _HARD[shape](np.random.default_rng(2), _SEARCHES, size)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    parts = _parts_of(shape, vectors)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bench.databases.fresh(store))
        config = Config(database=url)
        async with App(tables=[_table(None)]).open(config=config, push_schema=True) as backend:
            now = backend.engine.clock.now()
        at = now if store == "postgres" else encode_datetime(now)
        given = ((format_id("text", n), at, *parts[n], json.dumps([*map(float, vectors[n])])) for n in range(rows))
        await load(url, "text", ["id", "creation_time", *_PARTS, "embedding"], given)
        table = _table(size)
        app = App(name="vectors", tables=[table])

        @app.query
        async def find(ctx: QueryCtx, vector: list[float], filters: dict[str, int]) -> list[str]:
            found = await ctx.vector_search(table.by_meaning, vector, limit=_LIMIT, **filters)
            return [hit.id for hit in found]

        @app.mutation
        async def change(ctx: MutationCtx, gone: list[str], come: list[int]) -> list[str]:
            for one in gone:
                await ctx.db.delete(table, Id(one))
            made = [
                table(**dict(zip(_PARTS, parts[n], strict=True)), embedding=[*map(float, vectors[n])]) for n in come
            ]
            return [*await ctx.db.insert_many(made)]

        backend = await stack.enter_async_context(app.open(config=config, push_schema=True))
        searches = searches_of([definition_of(table)])
        await fill_searches(backend.engine.store, searches)
        ids, dice = {n: format_id("text", n) for n in range(rows)}, np.random.default_rng(3)

        async def exchange(first: int, last: int) -> None:
            """Delete as many rows as come."""
            gone = [int(one) for one in dice.choice([*ids], last - first, replace=False)]
            come = [*range(first, last)]
            made = await backend.run_mutation(change, [ids.pop(one) for one in gone], come)
            ids.update(zip(come, made, strict=True))

        for begin in range(rows, rows + changed, _AT_ONCE):
            await exchange(begin, min(begin + _AT_ONCE, rows + changed))
        indexer = Indexer(backend.runner, "bench", searches)
        while not await indexer.tick():
            pass  # more changes wait
        await indexer.finish()
        coming = rows + changed
        for name in ("all", *_PARTS):
            filters, hits, taken = {} if name == "all" else {name: 0}, 0, list[float]()
            for vector in wanted:
                await exchange(coming, coming + 1)
                coming += 1
                begun = time.perf_counter()
                found = await backend.run_query(find, [*map(float, vector)], filters)
                taken.append(time.perf_counter() - begun)
                place = 0 if name == "all" else [*_PARTS].index(name)
                fits = np.array([n for n in ids if name == "all" or not parts[n][place]])
                best = fits[np.argsort(-(units[fits] @ (vector / np.linalg.norm(vector))))[:_LIMIT]]
                hits += len({*found} & {ids[int(one)] for one in best})
            bench.row(spread(f"{shape} {name} ms", [1e3 * one for one in taken]))
            bench.hold(f"{shape}_{name}_recall", hits / len(wanted) / _LIMIT, Bar(at_least=_RECALL))


_STORES: tuple[StoreName, ...] = ("postgres", "sqlite")
BENCHMARKS = (
    *(Benchmark(f"large_vectors_wide_{store}", partial(small, store=store)) for store in _STORES),
    *(Benchmark(f"large_vectors_{store}", partial(large, store=store)) for store in _STORES),
    *(
        Benchmark(f"large_hard_vectors_{shape}_{store}", partial(hard, store=store, shape=shape))
        for shape in _HARD
        for store in _STORES
    ),
)
