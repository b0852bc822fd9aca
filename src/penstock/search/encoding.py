"""Tokens as side tables store them, and searches in each database's own syntax.

Owns the stored form: the tokens of a text with spaces between. FTS5 with its tokenizer `ascii` and a `tsvector` split
such a text at the spaces alone and change nothing else: a token has lower-case ASCII letters, digits, and letters,
digits and marks beyond ASCII. Nothing has to be escaped, and both compare prefixes by the bytes of UTF-8.
Leaves tables and statements to the stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from penstock.search.query import Query, Word
from penstock.search.tokenizer import tokens

MAX_REPEATS = 16  # of a token in a row that are stored, and count for the order
MAX_BYTES = 1_000_000  # of a row's different tokens, in UTF-8; a tsvector holds 1,048,576

_AND = {"fts5": " AND ", "tsquery": " & "}
_OR = {"fts5": " OR ", "tsquery": " | "}


def encode(text: str | None) -> str:
    """The tokens of a text in the form that is stored; empty if nothing finds it.

    A token that is repeated is stored 16 times at most. The text behind the first megabyte of different tokens is not
    indexed.
    """
    return " ".join(_limit(text)) if text else ""


def _limit(text: str) -> Iterator[str]:
    counts, left = Counter[str](), MAX_BYTES
    for token in tokens(text):
        count = counts[token] = counts[token] + 1
        if count == 1:
            left -= len(token.encode())
            if left < 0:
                return
        if count <= MAX_REPEATS:
            yield token


def fts5_match(query: Query) -> str:
    """A query as FTS5 takes it at the right of MATCH. The query has words."""
    return _write(query, "fts5", lambda token, prefix: f'"{token}"*' if prefix else f'"{token}"')


def tsquery(query: Query) -> str:
    """A query as the text of a ``tsquery``. The query has words."""
    return _write(query, "tsquery", lambda token, prefix: f"'{token}':*" if prefix else f"'{token}'")


def _write(query: Query, language: str, term: Callable[[str, bool], str]) -> str:
    def write_word(word: Word) -> str:
        terms = [term(token, word.prefix) for token in word.tokens]
        return f"({_AND[language].join(terms)})" if len(terms) > 1 else terms[0]

    return (_OR if query.match == "any" else _AND)[language].join(map(write_word, query.words))
