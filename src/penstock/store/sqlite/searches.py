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
from penstock.store.nouns.searches import MOST_HITS, Layout, Nearest, Searches
from penstock.store.session import OpenTransaction, Row

_ADD = "insert into {t}_words (rowid, tokens) values (new.docid, new.tokens)"
_REMOVE = "insert into {t}_words ({t}_words, rowid, tokens) values ('delete', old.docid, old.tokens)"


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
    _drop = ("drop table if exists {t}_words", "drop table if exists {t}")
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
        where = f" where {' and '.join(chosen)}" if chosen else ""
        nearest = f"select penstock_nearest(docid, vector, ?, ?) from {{t}}{where}"
        text = f"select key, vector from {{t}} where docid in (select value from json_each(({nearest})))"
        lists = [*wanted.filters.values(), *([wanted.without] if wanted.without else ())]
        args = [pack(wanted.vector), wanted.count, *map(json.dumps, lists)]
        return await session.fetch(self._on(number, text), args)

    async def _check_vectors(self) -> None:
        with of_extra("vectors", "A VectorIndex on SQLite", {"numpy"}):
            import numpy as np  # noqa: F401, PLC0415 - only programs with vectors need it

    async def _vectors(self, search: TableVectors) -> Layout:
        filters = [f"f{place}" for place in range(len(search.index.filters))]
        columns = ["key", "vector", *filters]
        typed = "".join(f", {name} integer not null" for name in filters)
        return Layout(
            make=(
                (
                    "create table {t} (docid integer primary key, key text not null unique, "
                    f"vector blob not null{typed}) strict"
                ),
                *(f"create index {{t}}_{name} on {{t}} ({name})" for name in filters),
            ),
            put=f"insert into {{t}} ({', '.join(columns)}) values ({', '.join('?' * len(columns))}) on conflict (key) "
            f"do update set {', '.join(f'{name} = excluded.{name}' for name in columns[1:])}",
        )
