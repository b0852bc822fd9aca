# ruff: noqa: RUF001 - the letters of these texts look like others: they are about that
"""FTS5 and a GIN index over a `tsvector` find the rows that Python finds, and rank them alike."""

from __future__ import annotations

import random  # noqa: TID251 - seeded
import re
import sqlite3
import unicodedata
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import takewhile
from typing import Any

import psycopg
import pytest
from stage.needs import LONG, examples

from penstock.search.encoding import MAX_BYTES, encode, filter_token, fts5_match, tsquery
from penstock.search.query import Match, Query, parse_query
from penstock.search.rank import Rank, scorer
from penstock.search.tokenizer import tokens

ROWS, QUERIES = 1_600, examples(1_600)
PARTS = 32 if LONG else 1  # 51,200 texts and as many searches in a long run
_WORDS = """
a b ab abc abd apple apples APPLE Äpfel straße STRASSE İstanbul istanbul ΟΔΟΣ οδός ﬁne ｆｉｎｅ й и ё café cafe\u0301 12
１２ हिन्दी हिन्द ไทย ทย 東京 京都 東京都庁 京 ガ ｶﾞ 한국어 한국 🎉 👩‍🚀 1️⃣ \u0301 x\u0323\u0301 \ufdfa 東東東 。 ， _
https://a.b/c?d=e me@example.com don't O’Neill snake_case C++ a:b 'a' "a" \\ a\\b & | ! * ( ) NEAR/2 AND
OR NOT ^a a* -a +a {a} a:* <-> <b> \x01 \x7f \u200d \u200b \u00ad
"""
_PARTS = [*_WORDS.split(), "x" * 70, "ж" * 70]
_GAPS = [" ", " ", " ", "", "-", "\n", "。"]

Find = Callable[[Query, list[str]], list[tuple[int, str]]]


def text_of(rnd: random.Random, most: int) -> str:
    parts = (rnd.choice(_PARTS) + rnd.choice(_GAPS) for _ in range(rnd.randint(0, most)))
    strange = "".join(
        chr(rnd.choice((rnd.randint(1, 0x24F), rnd.randint(0x250, 0xD7FF)))) for _ in range(rnd.randint(0, 3))
    )
    return "".join(parts) + strange


def indexed(key: int, text: str) -> str:
    """What a side table holds for a row: its tokens, and that of a filter with three values."""
    return f"{encode(text)} {filter_token(0, key % 3)}".strip()


def texts(part: int) -> dict[int, str]:
    rnd = random.Random(38 + part)
    return {key: text_of(rnd, 12) for key in range(1, ROWS + 1)}


@pytest.fixture(params=range(PARTS))
def part(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def fts5(part: int) -> Iterator[Find]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create virtual table search using fts5(tokens, tokenize = 'ascii', detail = none)")
        rows = ((key, indexed(key, text)) for key, text in texts(part).items())
        connection.executemany("insert into search (rowid, tokens) values (?, ?)", rows)
        found = "select rowid, tokens from search where search match ?"
        yield lambda query, filters: connection.execute(found, (fts5_match(query, filters),)).fetchall()


@pytest.fixture
def tsvector(empty_postgres_url: str, part: int) -> Iterator[Find]:
    with psycopg.connect(empty_postgres_url) as connection:
        connection.execute("create table search (key bigint primary key, tokens text not null)")
        connection.execute("create index on search using gin ((tokens::tsvector))")
        with connection.cursor().copy("copy search from stdin") as copy:
            for key, text in texts(part).items():
                copy.write_row((key, indexed(key, text)))
        connection.execute("analyze search")
        connection.execute("set enable_seqscan = off")
        found = "select key, tokens from search where tokens::tsvector @@ %s::tsquery"
        plan = connection.execute(f"explain {found}", ("'a'",)).fetchall()
        assert "search_tokens_idx" in str(plan)
        yield lambda query, filters: connection.execute(found, (tsquery(query, filters),)).fetchall()


@pytest.fixture(params=["fts5", "tsvector"])
def find(request: pytest.FixtureRequest) -> Find:
    found: Find = request.getfixturevalue(request.param)
    return found


class Rows:
    """The rows by their words, told from these one by one."""

    def __init__(self, rows: dict[int, str]) -> None:
        self._having: dict[str, set[int]] = defaultdict(set)
        for key, text in rows.items():
            for token in tokens(text):
                self._having[token].add(key)
        self._tokens = sorted(self._having)

    def fit(self, query: Query) -> set[int]:
        """The rows that fit a query."""
        words = [set.intersection(*(self._have(one, word.prefix) for one in word.tokens)) for word in query.words]
        return set.union(*words) if query.match == "any" else set.intersection(*words)

    def _have(self, token: str, prefix: bool) -> set[int]:
        if not prefix:
            return self._having.get(token, set())
        longer = takewhile(lambda one: one.startswith(token), self._tokens[bisect_left(self._tokens, token) :])
        return set[int]().union(*(self._having[one] for one in longer))


def order(query: Query, rows: list[tuple[int, str]]) -> list[Rank]:
    score = scorer(query)
    return sorted((Rank(*found, None, key) for key, stored in rows if (found := score(stored))), reverse=True)


def test_each_engine_finds_what_python_finds_in_the_same_order(find: Find, part: int) -> None:
    rnd, written = random.Random(83 + part), texts(part)
    known, stored = Rows(written), {key: indexed(key, text) for key, text in written.items()}
    nonempty, matches = 0, list[Match](["any", "all"])
    for number in range(QUERIES):
        query = parse_query(text_of(rnd, 20 if number % 50 == 0 else 3), matches[number // 4 % 2])
        if not query.words:
            continue
        wanted = number % 4  # 3: without a filter
        found = find(query, [] if wanted == 3 else [filter_token(0, wanted)])
        expected = {key for key in known.fit(query) if wanted in {key % 3, 3}}
        assert {key for key, _ in found} == expected, query
        assert all(stored[key] == row for key, row in found)
        ranks = order(query, [(key, stored[key]) for key in expected])
        assert order(query, found) == ranks, query
        assert {rank.key for rank in ranks} == expected, query
        if number % 10 == 0:
            others = [(key, row) for key, row in stored.items() if wanted in {key % 3, 3}]
            assert order(query, others) == ranks, query
        nonempty += bool(expected)
    assert nonempty > QUERIES / 3


def every_token() -> set[str]:
    """A token with each letter, digit and mark of Unicode that a text can have after folding."""
    chars = (chr(code) for code in range(0x2FA20) if not 0xD800 <= code < 0xE000)
    return {token for char in chars if unicodedata.category(char)[0] in "LNM" for token in tokens(f"x{char}")}


def test_both_databases_store_each_token_unchanged(empty_postgres_url: str) -> None:
    expected = every_token()
    parts = [*sorted(expected)[::2]], [*sorted(expected)[1::2]]
    assert len(expected) > 100_000
    with closing(sqlite3.connect(":memory:")) as lite, psycopg.connect(empty_postgres_url) as postgres:
        lite.execute("create virtual table search using fts5(tokens, tokenize = 'ascii', detail = none)")
        lite.execute("create virtual table terms using fts5vocab(search, row)")
        found = set[str]()
        for part in parts:  # each within the limit of one tsvector
            lite.execute("insert into search (tokens) values (?)", (" ".join(part),))
            row: Any = postgres.execute("select tsvector_to_array(%s::tsvector)", (" ".join(part),)).fetchone()
            found |= {*row[0]}
        assert found == expected
        assert {term for (term,) in lite.execute("select term from terms")} == expected


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_greatest_row_fits_both(empty_postgres_url: str, repeats: int) -> None:
    stored = encode(" ".join(f"wörter{number}" for number in range(200_000) for _ in range(repeats)))
    assert len(stored.encode()) > MAX_BYTES
    with closing(sqlite3.connect(":memory:")) as lite, psycopg.connect(empty_postgres_url) as postgres:
        lite.execute("create virtual table search using fts5(tokens, tokenize = 'ascii', detail = none)")
        lite.execute("insert into search (tokens) values (?)", (stored,))
        postgres.execute("create table search (tokens text not null)")
        postgres.execute("create index on search using gin ((tokens::tsvector))")
        postgres.execute("insert into search values (%s)", (stored,))
        last = re.split(" ", stored)[-1]
        query = parse_query(f"wort {last}", "any")
        assert lite.execute("select count(*) from search where search match ?", (fts5_match(query),)).fetchone() == (1,)
        counted = postgres.execute(
            "select count(*) from search where tokens::tsvector @@ %s::tsquery", (tsquery(query),)
        )
        assert counted.fetchone() == (1,)
