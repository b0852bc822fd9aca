"""Text search: how long searches take in many rows, and what an index costs writers.

``large_search_postgres``, ``large_search_sqlite``: rows of 30 words, whose frequencies fall as those of a language do.
Searches ask for the best twenty rows with a word that one row in a thousand has, or one that a third of the rows have.

``search_insert_…``: rows are inserted in mutations, until the indexer of the same process has read them all. Two tables
take turns, one with an index. The processor time of this process is compared on SQLite, where it is all of it; on
PostgreSQL the time by the clock.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
import types
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from benchmarks.databases import StoreName, load
from benchmarks.harness import Bar, Bench, Benchmark, alternate, plain, spread
from penstock import App, Backend, Config, MutationCtx, QueryCtx, SearchIndex, Table
from penstock.api.searches import count_unread, fill_searches
from penstock.changes.searches import TableSearch
from penstock.schema.ids import format_id
from penstock.schema.table import definition_of
from penstock.store.sqlite.dialect import encode_datetime

_WORDS, _LENGTH, _TAKE = 50_000, 30, 20
_RARE = range(2_700, 5_000)  # ranks of words that at most a row in a thousand has
_OFTEN = "often"
_BARE = {"__module__": __name__, "__annotations__": {"text": str}}
_RARELY, _OFTENER = 200, 20  # searches


class Note(Table):
    """Rows that are searched."""

    text: str

    by_text = SearchIndex("text")


class Unsearched(Table):
    """The same rows without an index."""

    text: str


app = App(name="searches", tables=[Note, Unsearched])


@app.query
async def find(ctx: QueryCtx, text: str) -> int:
    """Read the best rows with words."""
    return len(await ctx.db.query(Note).with_search_index(Note.by_text, text).take(_TAKE))


@app.mutation
async def insert(ctx: MutationCtx, searched: bool, texts: list[str]) -> None:
    """Insert rows."""
    table: Any = Note if searched else Unsearched
    await ctx.db.insert_many([table(text=text) for text in texts])


def _texts(seed: int) -> Iterator[str]:
    dice = random.Random(seed)
    words = [f"w{rank:05}x" for rank in range(1, _WORDS + 1)]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, _WORDS + 1)))
    for number in itertools.count():
        text = " ".join(dice.choices(words, cum_weights=weights, k=_LENGTH))
        yield text if number % 3 else f"{_OFTEN} {text}"


async def large(bench: Bench, store: StoreName) -> None:
    """Hold the times of searches to their bars."""
    count = bench.sizes.searched
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bench.databases.fresh(store))
        unsearched = types.new_class("Note", (Table,), {}, lambda space: space.update(_BARE))
        async with App(tables=[unsearched]).open(config=Config(database=url), push_schema=True) as backend:
            now = backend.engine.clock.now()
        at = now if store == "postgres" else encode_datetime(now)
        rows = ((format_id("note", number), at, text) for number, text in enumerate(itertools.islice(_texts(1), count)))
        await load(url, "note", ["id", "creation_time", "text"], rows)
        backend = await stack.enter_async_context(app.open(config=Config(database=url), push_schema=True))
        searches = [TableSearch(definition_of(Note), Note.by_text)]
        begun, used = time.perf_counter(), time.process_time()
        await fill_searches(backend.engine.store, searches)
        took, spent = time.perf_counter() - begun, time.process_time() - used
        bench.row(f"{count} rows indexed in {plain(took)} s", f"{plain(spent)} s of this process")
        dice = random.Random(2)
        rare = [f"w{rank:05}x" for rank in dice.choices(_RARE, k=_RARELY)]
        for name, words, bar in (("rare", rare, 0.02), ("often", [_OFTEN] * _OFTENER, 0.2)):
            taken, cpu = list[float](), list[float]()
            for word in words:
                begun, used = time.perf_counter(), time.process_time()
                await backend.run_query(find, word)
                taken.append(time.perf_counter() - begun)
                cpu.append(time.process_time() - used)
            late = statistics.quantiles(taken, n=20)[-1] if len(taken) > 1 else taken[0]
            bench.row(spread(f"{name} ms", [1e3 * one for one in taken]), spread("cpu ms", [1e3 * one for one in cpu]))
            bench.hold(f"{name}_p95", late, Bar(at_most=bar))


async def inserts(bench: Bench, store: StoreName, together: int) -> float:
    """The rate of inserts into a table with an index, as a part of that without."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(bench.databases.fresh(store))
        config = Config(database=url)
        backend = await stack.enter_async_context(app.open(config=config, services=("indexer",)))
        texts, count = _texts(3), bench.sizes.mutations // 3
        turn = partial(_insert, backend, texts, count, together, by_clock=store == "postgres")
        await alternate(1, partial(turn, searched=True), partial(turn, searched=False))
        pairs = await alternate(bench.sizes.turns, partial(turn, searched=True), partial(turn, searched=False))
        ratios = [a / b for a, b in zip(*pairs, strict=True)]
        bench.row(spread("indexed", pairs[0], "/s"), spread("not", pairs[1], "/s"), spread("ratio", ratios))
        return statistics.median(ratios)


async def _insert(
    backend: Backend, texts: Iterator[str], count: int, together: int, *, searched: bool, by_clock: bool
) -> float:
    """Rows inserted, and indexed, in a second."""
    batches = [list(itertools.islice(texts, together)) for _ in range(count // together)]
    search = TableSearch(definition_of(Note), Note.by_text)
    taker = time.perf_counter if by_clock else time.process_time
    begun = taker()
    for batch in batches:
        await backend.run_mutation(insert, searched, batch)
    while searched and await count_unread(backend.engine.store, search, 1):
        await backend.engine.clock.sleep(0.01)
    return count / (taker() - begun)


_STORES: tuple[StoreName, ...] = ("postgres", "sqlite")
BENCHMARKS = (
    *(
        Benchmark(
            f"search_insert_{store}_{together}", partial(inserts, store=store, together=together), Bar(at_least=0.5)
        )
        for store in _STORES
        for together in (1, 10)
    ),
    *(Benchmark(f"large_search_{store}", partial(large, store=store)) for store in _STORES),
)
