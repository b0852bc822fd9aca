"""Search indexes on SQLite: FTS5 over a table of tokens, and numpy over a table of vectors.

Only penstock writes these tables, so the triggers of FTS5 see all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from penstock.changes.searches import TableVectors
from penstock.errors import of_extra
from penstock.search.encoding import fts5_match
from penstock.search.query import Query
from penstock.search.vectors import pack
from penstock.store.nouns.searches import MOST_HITS, Indexed, Layout, Nearest, Searches
from penstock.store.session import OpenTransaction, Row
from penstock.store.sqlite.vectors import make_coarse

_ADD = "insert into {t}_words (rowid, tokens) values (new.docid, new.tokens)"
_REMOVE = "insert into {t}_words ({t}_words, rowid, tokens) values ('delete', old.docid, old.tokens)"
_PUT_COARSE = "insert or replace into {t}_coarse (docid, coarse) select docid, ? as coarse from {t} where key = ?"


class SqliteSearches(Searches):
    """See `store.nouns.Searches`."""

    _words = Layout(
        make=(
            (
                "create table {t} (docid integer primary key, key text not null unique, created integer, "
                "tokens text not null) strict"
            ),
            (
                "create virtual table {t}_words using fts5 (tokens, content = '{t}', content_rowid = 'docid', "
                "tokenize = 'ascii', detail = none, columnsize = 0)"
            ),
            f"create trigger {{t}}_insert after insert on {{t}} begin {_ADD}; end",
            f"create trigger {{t}}_delete after delete on {{t}} begin {_REMOVE}; end",
            f"create trigger {{t}}_update after update on {{t}} begin {_REMOVE}; {_ADD}; end",
        ),
        put=(
            "insert into {t} (key, created, tokens) values (?, ?, ?) "
            "on conflict (key) do update set created = excluded.created, tokens = excluded.tokens"
        ),
    )
    _drop = ("drop table if exists {t}_words", "drop table if exists {t}_coarse", "drop table if exists {t}")
    _delete = "delete from {t} where key = ?"
    _hits = (
        "select key, created, tokens from {t} where docid in "
        f"(select rowid from {{t}}_words where {{t}}_words match ? order by rowid desc limit {MOST_HITS})"
    )

    def _match(self, query: Query, filters: Iterable[str]) -> str:
        return fts5_match(query, filters)

    async def nearest(self, session: OpenTransaction, number: int, wanted: Nearest) -> Sequence[Row]:
        chosen = [f"f{place} in (select value from json_each(?))" for place in wanted.filters]
        chosen += ["key not in (select value from json_each(?))"] * bool(wanted.without)
        where = f" where docid in (select docid from {{t}} where {' and '.join(chosen)})" if chosen else ""
        near = f"select value from json_each((select penstock_near(docid, coarse, ?, ?) from {{t}}_coarse{where}))"
        nearest = f"select penstock_nearest(docid, vector, ?, ?) from {{t}} where docid in ({near})"
        text = f"select key, vector from {{t}} where docid in (select value from json_each(({nearest})))"
        lists = [*wanted.filters.values(), *([wanted.without] if wanted.without else ())]
        args = [*2 * (pack(wanted.vector), wanted.count), *map(json.dumps, lists)]
        return await session.fetch(self._on(number, text), args)

    async def _check_vectors(self) -> None:
        with of_extra("vectors", "A VectorIndex on SQLite", {"numpy"}):
            import numpy as np  # noqa: F401, PLC0415 - only programs with vectors need it

    async def _vectors(self, search: TableVectors) -> Layout:
        filters = [f"f{place}" for place in range(len(search.index.filters))]
        columns = ["key", "vector", *filters]
        typed = "".join(f"{name} integer not null, " for name in filters)
        return Layout(
            make=(
                (
                    f"create table {{t}} (docid integer primary key, key text not null unique, {typed}"
                    "vector blob not null) strict"
                ),
                "create table {t}_coarse (docid integer primary key, coarse blob not null) strict",
                (
                    "create trigger {t}_delete after delete on {t} begin "
                    "delete from {t}_coarse where docid = old.docid; end"
                ),
                *(f"create index {{t}}_{name} on {{t}} ({name})" for name in filters),
            ),
            put=f"insert into {{t}} ({', '.join(columns)}) values ({', '.join('?' * len(columns))}) on conflict (key) "
            f"do update set {', '.join(f'{name} = excluded.{name}' for name in columns[1:])}",
        )

    async def _write(self, session: OpenTransaction, number: int, layout: Layout, rows: Sequence[Indexed]) -> None:
        await super()._write(session, number, layout, rows)
        if rows and layout is not self._words:
            coarse = zip(make_coarse([one.values[0] for one in rows]), (one.key for one in rows), strict=True)
            await session.execute_many(self._on(number, _PUT_COARSE), [*map(list, coarse)])
