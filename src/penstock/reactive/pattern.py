"""Patterns of `matches`: the regular expressions that Python and the databases understand alike.

Owns the allowed ones, and the one spelling that PostgreSQL and Rust's regex library read in the same way. pydantic
brings that library. It takes time in proportion to the text, so no text can stall a match.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NoReturn

from pydantic_core import SchemaError, SchemaValidator
from pydantic_core.core_schema import str_schema

MAX_PATTERN = 500
MAX_SIZE = 1000
MAX_REPEAT = 255

# The content of a set for each class; written out, as libraries differ in the letters and digits beyond ASCII.
_CLASSES = {
    "d": "0-9",
    "w": "0-9A-Z_a-z",
    "s": "\t-\r ",
    "D": "\x01-/:-\U0010ffff",
    "W": "\x01-/:-@\\[-\\^`\\{-\U0010ffff",
    "S": "\x01-\x08\x0e-\x1f!-\U0010ffff",
}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_SPECIAL = frozenset(r"\.^$*+?{}[]()|-&~")  # the last two join sets in Rust
_REPEAT = re.compile(r"[*+?]|\{([0-9]+)(?:(,)([0-9]*))?\}")
_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class PatternInvalid(ValueError):
    """A pattern that the libraries do not read alike; its message names the part and says what to write."""


@lru_cache(maxsize=64)
def common_pattern(pattern: str) -> str:
    """This pattern in the common spelling.

    Raises:
        PatternInvalid: Not all understand it alike; the message names the part.
    """
    if len(pattern) > MAX_PATTERN:
        raise PatternInvalid(f"A pattern of {len(pattern)} characters is longer than {MAX_PATTERN}.")
    spelled, size = _Reader(pattern).read()
    if size > MAX_SIZE:
        raise PatternInvalid(f"The pattern {pattern!r} repeats more than can be held: over {MAX_SIZE} characters.")
    try:
        _matcher(spelled)
    except SchemaError as error:
        raise PatternInvalid(f"The pattern {pattern!r} cannot be held: {error}.") from error
    return spelled


def is_found(pattern: str, text: str) -> bool:
    """Whether a pattern is found anywhere in a text."""
    return _matcher(common_pattern(pattern)).isinstance_python(text)


@lru_cache(maxsize=64)
def _matcher(spelled: str) -> SchemaValidator:
    return SchemaValidator(str_schema(pattern=spelled, regex_engine="rust-regex"))


class _Reader:
    """Reads a pattern from left to right. Parts are a spelling, and a size with all repetitions written out."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def read(self) -> tuple[str, int]:
        spelled, size = self._either()
        if self.at < len(self.text):
            self._refuse(")", "there is no group that it closes")
        return spelled, size

    def _either(self) -> tuple[str, int]:
        found, branch, size = list[str](), "", 1
        while (letter := self._next()) and letter != ")":
            if letter == "|":
                self.at += 1
                found.append(branch)
                branch = ""
            else:
                part, part_size = self._repetition()
                branch, size = branch + part, size + part_size
        return f"(?:{'|'.join([*found, branch])})", size

    def _repetition(self) -> tuple[str, int]:
        first = self._next()
        part, size = self._atom()
        found = _REPEAT.match(self.text, self.at)
        if not found:
            if self._next() == "{":
                self._refuse("{", "it is no repetition such as {2} or {2,5}", "Write \\{ for itself")
            return part, size
        self.at = found.end()
        if first in "^$":
            self._refuse(first, "an edge of the text cannot be repeated")
        if self._next() and self._next() in "*+?{":
            self._refuse(self._next(), "it follows another repetition; lazy ones would not change what matches")
        least, most = _COUNTS.get(found[0]) or (int(found[1]), int(found[3] or -1) if found[2] else int(found[1]))
        if most == -1:
            most = None
        if least > MAX_REPEAT or (most is not None and not least <= most <= MAX_REPEAT):
            self._refuse(found[0], f"counts go from the smaller to the greater, up to {MAX_REPEAT}")
        return f"{part}{found[0]}", size * max(least + 1 if most is None else most, 1)

    def _atom(self) -> tuple[str, int]:
        letter = self._pop()
        if letter in "*+?{":
            self._refuse(letter, "there is nothing before it that it could repeat", "Write \\" + letter + " for itself")
        if letter in "}]":
            self._refuse(letter, "it closes nothing", "Write \\" + letter + " for itself")
        if letter == "(":
            return self._group()
        if letter in "^$":
            return letter, 1
        if letter == ".":
            return "[^\n]", 1
        if letter == "[":
            return self._set(), 1
        if letter == "\\":
            spelled = self._escape()
            return f"[{spelled}]" if len(spelled) > len("\\.") else spelled, 1
        return _plain(letter), 1

    def _group(self) -> tuple[str, int]:
        if self._take("?") and not self._take(":"):
            self._refuse("(?" + self._next(), "groups have no flags, names or looks ahead", "Write (…) or (?:…)")
        found = self._either()
        if not self._take(")"):
            self._refuse("(", "its group is not closed")
        return found

    def _escape(self) -> str:
        """One character, or the inside of a set for a class."""
        letter = self._pop()
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if not letter or letter.isalnum() or letter == "_" or not letter.isascii():
            fix = "Use \\d, \\w, \\s or [...]"
            self._refuse("\\" + letter, "it means something else, or nothing, in a database", fix)
        return _plain(letter)

    def _set(self) -> str:
        spelled = "[^" if self._take("^") else "["
        empty = spelled
        while not self._take("]"):
            first = self._member()
            if self._next() == "-" and self._next(1) not in {"]", ""}:
                self.at += 1
                last = self._member()
                if len(first.removeprefix("\\")) > 1 or len(last.removeprefix("\\")) > 1:
                    self._refuse("-", "a range goes from one character to another")
                if last[-1] < first[-1]:
                    self._refuse("-", "a range goes from the smaller to the greater")
                first = f"{first}-{last}"
            spelled += first
        if spelled == empty:
            self._refuse("[]", "a set has at least one character", "Write \\] for the bracket itself")
        return f"{spelled}]"

    def _member(self) -> str:
        letter = self._pop()
        if not letter:
            self._refuse("[", "its set is not closed")
        if letter == "[":
            self._refuse("[", "inside a set it is written \\[")
        return self._escape() if letter == "\\" else _plain(letter)

    def _next(self, ahead: int = 0) -> str:
        return self.text[self.at + ahead : self.at + ahead + 1]

    def _pop(self) -> str:
        letter = self._next()
        self.at += 1
        return letter

    def _take(self, letter: str) -> bool:
        found = self._next() == letter
        self.at += found
        return found

    def _refuse(self, part: str, why: str, fix: str = "") -> NoReturn:
        raise PatternInvalid(f"{part!r} in the pattern {self.text!r}: {why}. {fix + '.' if fix else ''}".rstrip())


def _plain(letter: str) -> str:
    return f"\\{letter}" if letter in _SPECIAL else letter
