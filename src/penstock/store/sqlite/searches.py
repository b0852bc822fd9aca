"""Search indexes on SQLite: FTS5 over the table of tokens. Only penstock writes that table, so its triggers see all."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.search.encoding import fts5_match
from penstock.search.query import Query
from penstock.store.nouns.searches import MOST_HITS, Searches

_ADD = "insert into {t}_words (rowid, tokens) values (new.docid, new.tokens)"
_REMOVE = "insert into {t}_words ({t}_words, rowid, tokens) values ('delete', old.docid, old.tokens)"


class SqliteSearches(Searches):
    """See `store.nouns.Searches`."""

    _make = (
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
    )
    _drop = ("drop table if exists {t}_words", "drop table if exists {t}")
    _put = (
        "insert into {t} (key, created, tokens) values (?, ?, ?) "
        "on conflict (key) do update set created = excluded.created, tokens = excluded.tokens"
    )
    _delete = "delete from {t} where key = ?"
    _hits = (
        "select key, created, tokens from {t} where docid in "
        f"(select rowid from {{t}}_words where {{t}}_words match ? order by rowid desc limit {MOST_HITS})"
    )

    def _match(self, query: Query, filters: Iterable[str]) -> str:
        return fts5_match(query, filters)
