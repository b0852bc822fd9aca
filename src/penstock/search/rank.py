"""The order of the rows that a search finds, computed from each row alone.

Owns whether a row fits, and its rank: words matched, whole words before prefixes, hits, then the newest. No other row
changes it. So it is equal on all stores, pages stay in order, and a live query knows which changes concern it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from penstock.search.query import Query, Word


class Rank(NamedTuple):
    """The place of a row among the rows found: a greater rank comes first."""

    words: int  # different words of the search that the row has
    whole: int  # how many of them not as a prefix only
    hits: int  # how often it has them
    created: datetime | None  # None for a table without creation times
    key: Any  # the row's id, or the tuple of its key columns


Score = tuple[int, int, int]  # the first three of a rank


def scorer(query: Query) -> Callable[[str], Score | None]:
    """A function that gives the score of a row from its stored tokens; None if the row does not fit.

    It is made once for a query, and called for each row that an index has found, and for each changed row.
    """
    needed = len(query.words) if query.match == "all" else 1
    counts = [_counter(word) for word in query.words]

    def score(tokens: str) -> Score | None:
        padded = f" {tokens.replace(' ', '  ')} "  # so that neighbours share no space
        words = whole = hits = 0
        for count in counts:
            found, exact = count(padded)
            if found:
                words += 1
                whole += exact > 0
                hits += found
        return (words, whole, hits) if words >= needed else None

    return score if counts else lambda _tokens: None


def _counter(word: Word) -> Callable[[str], tuple[int, int]]:
    """Count a word in padded tokens: all hits, and those of the whole word."""
    first, *others = (f" {token}" if word.prefix else f" {token} " for token in word.tokens)
    if word.is_beginning:
        return lambda padded: (padded.count(first), padded.count(f"{first} "))

    def count(padded: str) -> tuple[int, int]:
        found = padded.count(first)
        for other in others:
            if not found:
                break
            found = min(found, padded.count(other))
        return found, found

    return count
