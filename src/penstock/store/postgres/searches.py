"""Search indexes on PostgreSQL: a GIN index over a `tsvector`, in the table of tokens."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.search.encoding import tsquery
from penstock.search.query import Query
from penstock.store.nouns.searches import MOST_HITS, Searches


class PostgresSearches(Searches):
    """See `store.nouns.Searches`."""

    _make = (
        (
            "create table {t} (docid bigint generated always as identity primary key, "
            'key text collate "C" not null unique, created bigint, tokens text not null, '
            "words tsvector generated always as (tokens::tsvector) stored)"
        ),
        "create index on {t} using gin (words) with (fastupdate = off)",  # no user waits for its writes
    )
    _drop = ("drop table if exists {t}",)
    _put = (
        "insert into {t} (key, created, tokens) values ($1, $2, $3) "
        "on conflict (key) do update set created = excluded.created, tokens = excluded.tokens"
    )
    _delete = "delete from {t} where key = $1"
    _filled = ("analyze {t}",)  # so that the planner knows which words are frequent
    _hits = (
        f"select key, created, tokens from {{t}} where words @@ $1::text::tsquery order by docid desc limit {MOST_HITS}"
    )

    def _match(self, query: Query, filters: Iterable[str]) -> str:
        return tsquery(query, filters)
