"""Search indexes on PostgreSQL: a GIN index over a `tsvector`, in the table of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2s

from penstock.search.encoding import tsquery
from penstock.search.query import Query
from penstock.store.nouns.searches import MOST_HITS, Indexed, Searches
from penstock.store.session import OpenTransaction


class PostgresSearches(Searches):
    """See `store.nouns.Searches`."""

    _make = (
        (
            "create table {t} (docid bigint generated always as identity primary key, "
            'key text collate "C" not null, mark bytea not null unique, created bigint, tokens text not null, '
            "words tsvector generated always as (tokens::tsvector) stored)"
        ),
    )
    _complete = (
        # No user waits for its writes, so there is no list of pending ones, which searches would read.
        "create index if not exists search_{n}_words on {t} using gin (words) with (fastupdate = off)",
        "analyze {t}",  # so that the planner knows which words are frequent
    )
    _drop = ("drop table if exists {t}",)
    _put = (
        "insert into {t} (key, mark, created, tokens) "
        "select * from unnest($1::text[], $2::bytea[], $3::bigint[], $4::text[]) "
        "on conflict (mark) do update set created = excluded.created, tokens = excluded.tokens"
    )
    _delete = "delete from {t} where mark = $1"
    _hits = (
        f"select key, created, tokens from {{t}} where words @@ $1::text::tsquery order by docid desc limit {MOST_HITS}"
    )

    async def _write(self, session: OpenTransaction, number: int, rows: Sequence[Indexed]) -> None:
        if rows:
            keys = [one.key for one in rows]
            values = [keys, [*map(self._mark, keys)], [one.created for one in rows], [one.tokens for one in rows]]
            await session.execute(self._on(number, self._put), values)

    def _mark(self, key: str) -> bytes:
        """The hash of a key: an index takes no more than 2,704 bytes."""
        return blake2s(key.encode(), digest_size=16).digest()

    def _match(self, query: Query, filters: Iterable[str]) -> str:
        return tsquery(query, filters)
