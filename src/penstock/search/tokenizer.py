"""The tokens of a text, by which rows are found: the one tokenizer of both stores.

Owns folding (case, accents, width) and splitting. Leaves queries to `query`, and the stored form to `encoding`.
Letters, digits and marks make words. Scripts without spaces between words, such as Chinese or Thai, give each pair of
neighbouring characters, and the last character of the run alone: so any part of a run can be found.
Unicode's own data decides, and that of Python's build: `VERSION` names it, to be stored with each index.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import groupby, pairwise
from typing import NamedTuple

VERSION = f"2 {unicodedata.unidata_version}"  # of these rules, of the stored form, and of Unicode's data
MAX_WORD = 64  # characters; the rest of a longer word is left out, in texts and in queries
_PIECE = 8192  # characters that are folded at a time

_ASCII_WORD = re.compile(rf"([a-z0-9]{{1,{MAX_WORD}}})[a-z0-9]*")
_BREAKS = " \n\t.,;\u3001\u3002\uff0c\uff01\uff1f"

# Marks that are accents: those of other scripts are part of their letters.
_ACCENTS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_ACCENT = re.compile(rf"[{_ACCENTS}]+")
# In Cyrillic, an accent that Unicode composes with its letter makes another letter.
_CYRILLIC = re.compile("[\u0400-\u052f]")
_ACCENTED = re.compile(rf"([^\u0400-\u052f{_ACCENTS}])[{_ACCENTS}]+")
# Thai, Lao, Myanmar, Khmer and their kin; kana and bopomofo; Han.
UNBROKEN = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaadf"
    "\u3041-\u312f\u31a0-\u31bf\u31f0-\u31ff\U0001aff0-\U0001b16f"
    "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_HAS_UNBROKEN = re.compile(f"[{UNBROKEN}]")
# Marks take quadratic time to put into order. Nobody writes more than 30 in a row (Unicode's stream-safe format).
_MANY_MARKS = re.compile(r"([^\w\s\x00-\x7f]{30})[^\w\s\x00-\x7f]+")
# Unicode's other ignorable characters: selectors of variants, and fillers.
_IGNORABLE = "\u034f\u115f\u1160\u180b-\u180d\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
_ZERO_WIDTH_SPACE = 0x200B  # a format character that separates words


class Run(NamedTuple):
    """Characters of a text that stand together: a word, or several in a script without spaces."""

    text: str
    unbroken: bool


class _Patterns(NamedTuple):
    """Patterns that need the categories of all characters."""

    ignorable: re.Pattern[str]
    word: re.Pattern[str]
    unbroken: re.Pattern[str]


def fold(text: str) -> str:
    """A text without differences of case, accents, width, and invisible characters. Folding twice changes nothing."""
    if text.isascii():
        return text.lower()
    text = _patterns().ignorable.sub("", text)
    # The replaced characters are letters by category, but become marks.
    text = _MANY_MARKS.sub(r"\1 ", text.replace("\uff9e", "\u3099").replace("\uff9f", "\u309a"))
    text = unicodedata.normalize("NFKC", text).casefold()
    text = unicodedata.normalize("NFKD", text)
    if _CYRILLIC.search(text):
        text = unicodedata.normalize("NFKC", _ACCENTED.sub(r"\1", text))
    return unicodedata.normalize("NFKC", _ACCENT.sub("", text))


def tokens(text: str) -> Iterator[str]:
    """Yield the tokens of a text in its order, in linear time and with little memory."""
    for piece in _pieces(text):
        if piece.isascii():
            yield from _ASCII_WORD.findall(piece.lower())
        else:
            for run, unbroken in runs(piece):
                if unbroken:
                    yield from tokens_of_run(run)
                    yield run[-1]
                else:
                    yield run[:MAX_WORD]


def tokens_of_run(run: str) -> Iterator[str]:
    """Yield the pairs of neighbouring characters in a run of a script without spaces."""
    return (first + second for first, second in pairwise(run))


def runs(text: str) -> Iterator[Run]:
    """Yield the words of a text, and its runs in scripts without spaces, at full length."""
    patterns, text = _patterns(), fold(text).replace("_", " ")
    words = (found[0] for found in patterns.word.finditer(text))
    if not _HAS_UNBROKEN.search(text):
        yield from (Run(word, unbroken=False) for word in words)
        return
    for word in words:
        yield from (Run(part, is_unbroken(part)) for part in patterns.unbroken.split(word) if part)


def is_unbroken(token: str) -> bool:
    """Whether a token is of a script without spaces."""
    return _HAS_UNBROKEN.match(token) is not None


def _pieces(text: str) -> Iterator[str]:
    """Cut a long text between words. Where it has no gap, the pieces share a character, so no pair is lost."""
    start = 0
    while len(text) - start > _PIECE:
        end = start + _PIECE
        gap = max(text.rfind(one, start + _PIECE // 2, end) for one in _BREAKS)
        yield text[start : end if gap < 0 else gap]
        start = end - 1 if gap < 0 else gap + 1
    yield text[start:]


@cache
def _patterns() -> _Patterns:
    """Make the patterns, on the first text that is not ASCII: it takes some milliseconds."""
    codes = [*range(0x300, 0x20000), *range(0xE0000, 0xE0200)]  # no other has a mark or a format character
    categories = {code: unicodedata.category(chr(code)) for code in codes}
    marks = _class(lambda code: categories[code][0] == "M", codes)
    formats = _class(lambda code: categories[code] == "Cf" and code != _ZERO_WIDTH_SPACE, codes)
    return _Patterns(
        ignorable=re.compile(rf"[\xad{_IGNORABLE}{formats}]+"),
        word=re.compile(rf"\w[\w{marks}]*"),
        unbroken=re.compile(rf"([{UNBROKEN}][{UNBROKEN}{marks}]*)"),
    )


def _class(belongs: Callable[[int], bool], codes: Iterable[int]) -> str:
    """The inside of a character class, in ranges."""
    found = (code for code in codes if belongs(code))
    ranges = ([code for _, code in group] for _, group in groupby(enumerate(found), lambda pair: pair[1] - pair[0]))
    return "".join(f"{chr(one[0])}-{chr(one[-1])}" for one in ranges)
