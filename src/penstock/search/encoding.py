"""Tokens as side tables store them, and searches in each database's own syntax.

Owns the stored form: the tokens of a text with spaces between. FTS5 with its tokenizer `ascii` and a `tsvector` split
such a text at the spaces alone and change nothing else: a token has lower-case ASCII letters, digits, and letters,
digits and marks beyond ASCII. Nothing has to be escaped, and both compare prefixes by the bytes of UTF-8. The values
of filters are tokens too, so that the databases intersect them with the words.
Leaves tables and statements to the stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import blake2s
from typing import Any

from penstock.search.query import Query, Word
from penstock.search.tokenizer import tokens

MAX_REPEATS = 16  # of a token in a row that are stored, and count for the order
MAX_BYTES = 1_000_000  # of a row's stored tokens, in UTF-8; a tsvector is read from 1,048,576, repeats included
_SHORT = 4_096  # characters; a text of this length has fewer bytes of tokens
_FILTER = "\ue000"  # begins the tokens of filters: a character for private use, which no word has
_FILTER_BYTES = 6

_AND = {"fts5": " AND ", "tsquery": " & "}
_OR = {"fts5": " OR ", "tsquery": " | "}


def encode(text: str | None) -> str:
    """The tokens of a text in the form that is stored; empty if nothing finds it.

    A token that is repeated is stored 16 times at most. The text behind the first megabyte of stored tokens is not
    indexed.
    """
    if not text:
        return ""
    if len(text) <= _SHORT:
        found = [*tokens(text)]
        if len(found) - len({*found}) < MAX_REPEATS:  # so none is repeated more often
            return " ".join(found)
    return " ".join(_limit(text))


def _limit(text: str) -> Iterator[str]:
    counts, left = Counter[str](), MAX_BYTES
    for token in tokens(text):
        count = counts[token] = counts[token] + 1
        if count <= MAX_REPEATS:
            left -= len(token.encode())
            if left < 0:
                return
            yield token


def filter_token(number: int, value: Any) -> str:
    """A token for the value of a row's filter. Few other values have the same one, so the value is compared as well.

    Args:
        number: The place of the filter among those of its index.
        value: The value of its column, as `Column.encode` gives it.
    """
    return f"{_FILTER}{number:x}{_digest(value, _FILTER_BYTES).hex()}"


def filter_number(value: Any) -> int:
    """A number of 64 bits for the value of a row's filter, otherwise as `filter_token`."""
    return int.from_bytes(_digest(value, 8), "little", signed=True)


def _digest(value: Any, size: int) -> bytes:
    if isinstance(value, datetime):
        value = value.astimezone(UTC)
    elif isinstance(value, Decimal | float):
        value = (Decimal(value) + 0).normalize()  # equal numbers have one text, zeros included
    return blake2s(repr(value).encode("utf-8", "surrogatepass"), digest_size=size).digest()


def fts5_match(query: Query, filters: Iterable[str] = ()) -> str:
    """A query with words as FTS5 takes it at the right of MATCH, and tokens of filters that a row must have."""
    return _write(query, filters, "fts5", lambda token, prefix: f'"{token}"*' if prefix else f'"{token}"')


def tsquery(query: Query, filters: Iterable[str] = ()) -> str:
    """A query with words as the text of a ``tsquery``, and tokens of filters that a row must have."""
    return _write(query, filters, "tsquery", lambda token, prefix: f"'{token}':*" if prefix else f"'{token}'")


def _write(query: Query, filters: Iterable[str], language: str, term: Callable[[str, bool], str]) -> str:
    def write_word(word: Word) -> str:
        terms = [term(token, word.prefix) for token in word.tokens]
        return f"({_AND[language].join(terms)})" if len(terms) > 1 else terms[0]

    words = (_OR if query.match == "any" else _AND)[language].join(map(write_word, query.words))
    needed = [term(token, False) for token in filters]
    return _AND[language].join([f"({words})", *needed]) if needed else words
