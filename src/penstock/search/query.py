"""A search as its words: at most 16 of the text that a user typed.

Owns the meaning of a search text. Leaves the order of the rows found to `rank`, and each database's own text of a
search to `encoding`. A search text has no operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Literal

from penstock.dataclass import dataclass
from penstock.errors import ValueInvalid
from penstock.search.tokenizer import MAX_WORD, Run, is_unbroken, runs, tokens_of_run

Match = Literal["any", "all"]

MAX_WORDS = 16
_MAX_TEXT = 4096  # characters that are read: more than 16 words of the greatest length


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a search: tokens, which a row must have all."""

    tokens: tuple[str, ...]
    prefix: bool = False  # whether the beginning of a token is enough; then it is one token

    @property
    def is_beginning(self) -> bool:
        """Whether rows with the whole word fit better than rows with a longer one."""
        return self.prefix and not is_unbroken(self.tokens[0])


@dataclass(frozen=True, slots=True)
class Query:
    """The different words of a search, in their order. Without words it finds nothing."""

    words: tuple[Word, ...]
    match: Match = "any"


def parse_query(text: str, match: Match = "any") -> Query:
    """Make the query of a search text.

    The last word also finds words that begin with it, unless words after it were ignored.

    Args:
        text: The text that a user typed. Its first 4,096 characters and its first 16 words count.
        match: Whether a row needs ``"any"`` word of the text, or ``"all"`` of them.

    Raises:
        ValueInvalid: `text` is no text, or `match` is neither.
    """
    given: object = text
    if not isinstance(given, str):
        raise ValueInvalid(f"A search looks for a text, not for {type(given).__name__}.")
    if match not in {"any", "all"}:
        raise ValueInvalid(f"A search matches any or all words, not {match!r}.", fix='Pass match="any" or match="all".')
    found = list(islice(_words(runs(text[:_MAX_TEXT])), MAX_WORDS + 1))
    if found and len(found) <= MAX_WORDS and len(found[-1].tokens) == 1:
        found[-1] = replace(found[-1], prefix=True)
    return Query(_distinct(found[:MAX_WORDS]), match)


def _words(found: Iterable[Run]) -> Iterator[Word]:
    for text, unbroken in found:
        run = text[:MAX_WORD]
        if unbroken and len(run) > 1:
            yield Word(tuple(dict.fromkeys(tokens_of_run(run))))
        else:  # a character alone is the beginning of its pairs
            yield Word((run,), prefix=unbroken)


def _distinct(words: list[Word]) -> tuple[Word, ...]:
    """Remove repeated words; one that is also a prefix stays so."""
    found: dict[tuple[str, ...], Word] = {}
    for word in words:
        if word.tokens not in found or word.prefix:
            found[word.tokens] = word
    return tuple(found.values())
