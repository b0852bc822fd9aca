"""Search indexes on PostgreSQL: GIN over a table of tokens, and pgvector's HNSW over a table of vectors.

HNSW finds the nearest rows of a whole table. Where filters leave few rows, all of these are compared, which is exact.
Where they leave many, HNSW goes on until it has enough of them, if pgvector is of 0.8 or later.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2s
from typing import NamedTuple

from penstock.changes.searches import TableVectors
from penstock.errors import ConfigError, PenstockError
from penstock.search.encoding import tsquery
from penstock.search.query import Query
from penstock.search.vectors import unpack
from penstock.store.nouns.searches import MOST_HITS, Indexed, Layout, Nearest, Searches
from penstock.store.session import OpenTransaction, Row, Statement

_MOST_COMPARED = 16_000_000  # numbers of vectors that are all compared, in 20 ms or so
_MOST_INDEXED, _MOST_FULL = 4_000, 2_000  # dimensions that HNSW takes as 16-bit floats, and as 32-bit ones
_MOST_INLINE = 1_900  # dimensions of vectors that fit into a page, with the other columns
_ITERATES = (0, 8)  # the version of pgvector
_SPARE = 16  # rows above the wanted ones: pgvector adds in 32 bits, and the index may have 16
# A database in a container has little shared memory, which workers would need.
_BUILD = (
    "select set_config('max_parallel_maintenance_workers', '0', true), set_config('maintenance_work_mem', "
    "greatest(pg_size_bytes(current_setting('maintenance_work_mem')), 268435456) / 1024 || 'kB', true)"
)
_SETTINGS = (
    "select set_config('hnsw.iterative_scan', 'strict_order', true), set_config('hnsw.ef_search', $1, true), "
    "set_config('hnsw.max_scan_tuples', '100000', true), set_config('hnsw.scan_mem_multiplier', '4', true)"
)
_LACKS = "A VectorIndex on PostgreSQL needs the extension pgvector"
_INSTALL = (
    "Install it on the server, such as Debian's postgresql-17-pgvector, and have an administrator run create extension "
    "vector in this database."
)
_CREATE = "create extension if not exists vector"
_EXTENSION = (
    "select quote_ident(nspname) as schema, extversion from pg_extension join pg_namespace n on n.oid = extnamespace "
    "where extname = 'vector'"
)


class _Extension(NamedTuple):
    schema: str
    version: tuple[int, ...]

    def index_type(self, dimensions: int) -> str:
        """The type that HNSW takes for vectors; empty if there is none, or if filters would lose rows."""
        if self.version < _ITERATES or dimensions > _MOST_INDEXED:
            return ""
        return f"{self.schema}.{'vector' if dimensions <= _MOST_FULL else 'halfvec'}"


class PostgresSearches(Searches):
    """See `store.nouns.Searches`."""

    _extension: _Extension | None = None
    _words = Layout(
        make=(
            (
                "create table {t} (docid bigint generated always as identity primary key, "
                'key text collate "C" not null, mark bytea not null unique, created bigint, tokens text not null, '
                "words tsvector generated always as (tokens::tsvector) stored)"
            ),
        ),
        put=(
            "insert into {t} (key, mark, created, tokens) "
            "select * from unnest($1::text[], $2::bytea[], $3::bigint[], $4::text[]) "
            "on conflict (mark) do update set created = excluded.created, tokens = excluded.tokens"
        ),
        complete=(
            # No user waits for its writes, so there is no list of pending ones, which searches would read.
            "create index if not exists search_{n}_words on {t} using gin (words) with (fastupdate = off)",
            "analyze {t}",  # so that the planner knows which words are frequent
        ),
    )
    _drop = ("drop table if exists {t}",)
    _delete = "delete from {t} where mark = $1"
    _hits = (
        f"select key, created, tokens from {{t}} where words @@ $1::text::tsquery order by docid desc limit {MOST_HITS}"
    )

    async def nearest(self, session: OpenTransaction, number: int, wanted: Nearest) -> Sequence[Row]:
        extension, size = await self._find_extension(), len(wanted.vector)
        lists = [*wanted.filters.values(), *([[*map(self._mark, wanted.without)]] if wanted.without else ())]
        chosen = [f"f{place} = any($X::bigint[])" for place in wanted.filters]
        chosen += ["mark <> all($X::bytea[])"] * bool(wanted.without)
        where = " and ".join(text.replace("X", str(place)) for place, text in enumerate(chosen, 2)) or "true"
        count, schema = wanted.count + _SPARE, extension.schema
        # The vectors of the chosen rows alone are sent: a sort would carry all of them.
        rows = (
            f"select key, {schema}.vector_send(vector) from {{t}} where docid in "
            f"(select docid from {{t}} where {where} order by"
        )
        operator, given, args = f"operator({schema}.<#>)", f"$1::real[]::{schema}.vector", [[*wanted.vector], *lists]
        found: Sequence[Row] = ()
        indexed = extension.index_type(size)
        if indexed and await self._has_many(session, number, where, lists, _MOST_COMPARED // size):
            await session.execute(Statement(_SETTINGS), [str(min(1_000, max(400, 2 * count)))])
            near = f"{rows} vector::{indexed}({size}) {operator} {given}::{indexed}({size}) limit {2 * count})"
            found = await session.fetch(self._on(number, near), args)
        if len(found) < wanted.count:  # or the ones that fit lie too far away for the index
            # A sum, so that no index gives the order.
            exact = f"{rows} (vector {operator} {given}) + 0, key limit {count})"
            found = await session.fetch(self._on(number, exact), args)
        return [(key, _little_endian(sent[4:])) for key, sent in found]  # without the number of its dimensions

    async def _has_many(
        self, session: OpenTransaction, number: int, where: str, lists: Sequence[object], most: int
    ) -> bool:
        """Whether more rows than `most` are chosen."""
        chosen = f"select from {{t}} where {where} and $1::text is null limit {most + 1}"
        args = [None, *lists]  # the lists are numbered from 2
        ((found,),) = await session.fetch(self._on(number, f"select count(*) from ({chosen}) as chosen"), args)
        return bool(found > most)

    async def _check_vectors(self) -> None:
        self._extension = None  # it may be another one by now
        with suppress(ConfigError):
            await self._find_extension()
            return
        try:
            async with self._writing() as session:
                await session.execute(Statement(_CREATE))
        except PenstockError as error:  # or another process was quicker
            with suppress(ConfigError):
                await self._find_extension()
                return
            raise ConfigError(f"{_LACKS}: {error.what}", fix=_INSTALL) from error

    async def _find_extension(self) -> _Extension:
        if self._extension is None:
            async with self._reading() as session:
                found = await session.fetch(Statement(_EXTENSION))
            if not found:
                raise ConfigError(f"{_LACKS}.", fix=_INSTALL)
            ((schema, version),) = found
            self._extension = _Extension(schema, tuple(int(part) for part in version.split(".") if part.isdigit()))
        return self._extension

    async def _vectors(self, search: TableVectors) -> Layout:
        extension, size = await self._find_extension(), search.index.dimensions
        schema, filters = extension.schema, [f"f{place}" for place in range(len(search.index.filters))]
        columns = ["key", "mark", "vector", *filters]
        typed = "".join(f", {name} bigint not null" for name in filters)
        complete = [f"create index if not exists search_{{n}}_{name} on {{t}} ({name})" for name in filters]
        if indexed := extension.index_type(size):
            kind = indexed.rpartition(".")[2]
            complete.append(
                f"{_BUILD}; create index if not exists search_{{n}}_vector on {{t}} using hnsw "
                f"((vector::{indexed}({size})) {schema}.{kind}_ip_ops)"
            )
        return Layout(
            make=(
                (
                    "create table {t} (docid bigint generated always as identity primary key, "
                    'key text collate "C" not null, mark bytea not null unique, '
                    f"vector {schema}.vector({size}) not null{typed})"
                ),
                # So that they are read with their rows.
                *(["alter table {t} alter vector set storage plain"] * (size <= _MOST_INLINE)),
            ),
            put=f"insert into {{t}} ({', '.join(columns)}) values ($1, $2, $3::real[]::{schema}.vector"
            f"{''.join(f', ${place}' for place in range(4, 4 + len(filters)))}) on conflict (mark) do update set "
            + ", ".join(f"{name} = excluded.{name}" for name in columns[2:]),
            complete=(*complete, "vacuum (analyze) {t}"),  # so that rows are counted in their indexes alone
        )

    async def _write(self, session: OpenTransaction, number: int, layout: Layout, rows: Sequence[Indexed]) -> None:
        if rows and layout is self._words:
            keys, created, tokens = zip(*((one.key, *one.values) for one in rows), strict=True)
            values = [[*keys], [*map(self._mark, keys)], [*created], [*tokens]]
            await session.execute(self._on(number, layout.put), values)
        elif rows:
            given = [[one.key, self._mark(one.key), unpack(one.values[0]), *one.values[1:]] for one in rows]
            await session.execute_many(self._on(number, layout.put), given)

    def _mark(self, key: str) -> bytes:
        """The hash of a key: an index takes no more than 2,704 bytes."""
        return blake2s(key.encode(), digest_size=16).digest()

    def _match(self, query: Query, filters: Iterable[str]) -> str:
        return tsquery(query, filters)


def _little_endian(sent: bytes) -> bytes:
    floats = array("f", sent)
    floats.byteswap()
    return floats.tobytes()
