"""Patterns of `matches`: the regular expressions that Python and the databases understand alike.

Owns which ones there are, what they match, and how PostgreSQL spells them. A pattern is matched by steps from one set
of places in it to the next, so the time it takes grows with the text and nothing else: no text can stall a match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

MAX_PATTERN = 500
MAX_SIZE = 1000
MAX_REPEAT = 255
_CLASSES = {"d": "0-9", "w": "0-9A-Z_a-z", "s": "\t-\r "}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_SPECIAL = frozenset(r"\.^$*+?{}[]()|-")
_LAST = 0x10FFFF
_CACHED_STEPS = 512

Ranges = tuple[tuple[int, int], ...]


class PatternInvalid(ValueError):
    """A pattern that is none of those that all understand alike; says which part and what to write."""


@dataclass(frozen=True, slots=True)
class _One:
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class _Edge:
    end: bool


@dataclass(frozen=True, slots=True)
class _Repeat:
    of: _Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Either:
    branches: tuple[_Node, ...]


_Node = _One | _Edge | _Repeat | _Sequence | _Either


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def read(self) -> _Node:
        node = self._either()
        if self.at < len(self.text):
            self._refuse(")", "there is no group that it closes")
        return node

    def _either(self) -> _Node:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else _Either(tuple(branches))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._next() and self._next() not in "|)":
            parts.append(self._repeated(self._atom()))
        return _Sequence(tuple(parts))

    def _atom(self) -> _Node:
        letter = self._pop()
        if letter in "*+?{":
            self._refuse(letter, "there is nothing before it that it could repeat", "Write \\" + letter + " for itself")
        if letter in "^$":
            return _Edge(letter == "$")
        if letter == ".":
            return _One(_opposite(((10, 10),)))
        if letter == "(":
            return self._group()
        if letter == "[":
            return _One(self._set())
        if letter == "\\":
            return _One(self._escape())
        if letter in "}]":
            self._refuse(letter, "it closes nothing", "Write \\" + letter + " for itself")
        return _One(((ord(letter), ord(letter)),))

    def _group(self) -> _Node:
        if self._take("?") and not self._take(":"):
            self._refuse("(?" + self._next(), "groups have no flags, names or looks ahead", "Write (…) or (?:…)")
        node = self._either()
        if not self._take(")"):
            self._refuse("(", "its group is not closed")
        return node

    def _repeated(self, node: _Node) -> _Node:
        least, most = self._count()
        if (least, most) == (1, 1):
            return node
        if isinstance(node, _Edge):
            self._refuse("$" if node.end else "^", "an edge of the text cannot be repeated")
        if self._next() and self._next() in "*+?{":
            self._refuse(self._next(), "it follows another repetition; lazy ones would not change what matches")
        return _Repeat(node, least, most)

    def _count(self) -> tuple[int, int | None]:
        for letter, (least, most) in {"*": (0, None), "+": (1, None), "?": (0, 1)}.items():
            if self._take(letter):
                return least, most
        if self._next() != "{":
            return 1, 1
        found = re.compile(r"\{([0-9]+)(,([0-9]*))?\}").match(self.text, self.at)
        if not found:
            self._refuse("{", "it is no repetition such as {2} or {2,5}", "Write \\{ for itself")
        self.at = found.end()
        least = int(found[1])
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if least > MAX_REPEAT or (most is not None and not least <= most <= MAX_REPEAT):
            self._refuse(found[0], f"counts go from the smaller to the greater, up to {MAX_REPEAT}")
        return (least, most)

    def _escape(self) -> Ranges:
        letter = self._pop()
        if letter in _CONTROLS:
            return ((ord(_CONTROLS[letter]),) * 2,)
        if letter.lower() in _CLASSES:
            inside = _ranges_of(_CLASSES[letter.lower()])
            return inside if letter.islower() else _opposite(inside)
        if not letter or letter.isalnum() or letter == "_" or not letter.isascii():
            self._refuse(
                "\\" + letter, "it means something else, or nothing, in a database", "Use \\d, \\w, \\s or [...]"
            )
        return ((ord(letter), ord(letter)),)

    def _set(self) -> Ranges:
        negated = self._take("^")
        found: list[tuple[int, int]] = []
        while not self._take("]"):
            first = self._member()
            if self._next() == "-" and self._next(1) not in {"]", ""}:
                self._pop()
                last = self._member()
                if len(first) > 1 or len(last) > 1 or first[0][0] != first[0][1] or last[0][0] != last[0][1]:
                    self._refuse("-", "a range goes from one character to another")
                if last[0][0] < first[0][0]:
                    self._refuse("-", "a range goes from the smaller to the greater")
                found.append((first[0][0], last[0][0]))
            else:
                found.extend(first)
        if not found:
            self._refuse("[]", "a set has at least one character", "Write \\] for the bracket itself")
        return _opposite(tuple(found)) if negated else _merged(found)

    def _member(self) -> Ranges:
        letter = self._pop()
        if not letter:
            self._refuse("[", "its set is not closed")
        if letter == "[":
            self._refuse("[", "inside a set it is written \\[")
        return self._escape() if letter == "\\" else ((ord(letter), ord(letter)),)

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


def check_pattern(pattern: str) -> None:
    """Refuse what is no pattern that all understand alike.

    Raises:
        PatternInvalid: It is not; the message names the part.
    """
    if len(pattern) > MAX_PATTERN:
        raise PatternInvalid(f"A pattern of {len(pattern)} characters is longer than {MAX_PATTERN}.")
    if _size(_Reader(pattern).read()) > MAX_SIZE:
        raise PatternInvalid(f"The pattern {pattern!r} repeats more than can be held: over {MAX_SIZE} characters.")


def is_found(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text."""
    return _matcher(pattern).search(text)


def postgres_pattern(pattern: str) -> str:
    """The same pattern as PostgreSQL spells it."""
    return _spelled(_Reader(pattern).read())


def _ranges_of(text: str) -> Ranges:
    found, at = [], 0
    while at < len(text):
        last = at + 2 if text[at + 1 : at + 2] == "-" else at
        found.append((ord(text[at]), ord(text[last])))
        at = last + 1
    return _merged(found)


def _merged(ranges: list[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _opposite(ranges: Ranges) -> Ranges:
    found, start = [], 0
    for first, last in _merged(list(ranges)):
        if first > start:
            found.append((start, first - 1))
        start = last + 1
    return (*found, (start, _LAST)) if start <= _LAST else tuple(found)


def _size(node: _Node) -> int:
    """How many single characters it has when all its repetitions are written out."""
    if isinstance(node, _Repeat):
        return _size(node.of) * max(node.least + 1 if node.most is None else node.most, 1)
    if isinstance(node, (_Sequence, _Either)):
        return 1 + sum(map(_size, node.parts if isinstance(node, _Sequence) else node.branches))
    return 1


# ----- as PostgreSQL spells it


def _spelled(node: _Node) -> str:
    if isinstance(node, _One):
        return _spelled_set(node.ranges)
    if isinstance(node, _Edge):
        return "$" if node.end else "^"
    if isinstance(node, _Repeat):
        return f"(?:{_spelled(node.of)}){_spelled_count(node)}"
    if isinstance(node, _Sequence):
        return "".join(map(_spelled, node.parts)) or "(?:)"
    return f"(?:{'|'.join(map(_spelled, node.branches))})"


def _spelled_count(node: _Repeat) -> str:
    signs: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    most = "" if node.most is None else str(node.most)
    return signs.get((node.least, node.most)) or f"{{{node.least},{most}}}"


def _spelled_set(ranges: Ranges) -> str:
    if not ranges:
        return "(?:[^\\s\\S])"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _spelled_letter(ranges[0][0])
    negated = ranges[0][0] == 0 and ranges[-1][1] == _LAST and len(ranges) > 1
    listed = _opposite(ranges) if negated else ranges
    inside = "".join(
        _spelled_letter(first) if first == last else f"{_spelled_letter(max(first, 1))}-{_spelled_letter(last)}"
        for first, last in listed
    )
    return f"[{'^' if negated else ''}{inside}]"


def _spelled_letter(code: int) -> str:
    return "\\" + chr(code) if chr(code) in _SPECIAL else chr(code)


# ----- as it is matched


class _Matcher:
    """A pattern as places with steps between them; steps from sets of places are kept once they were made."""

    def __init__(self, node: _Node) -> None:
        self._on: list[list[int]] = []  # steps that take no character
        self._edges: list[tuple[bool, int] | None] = []  # steps at an edge: whether the end's, and where to
        self._by: list[tuple[Ranges, int] | None] = []  # steps by one character
        self._first = self._place()
        self._last = self._add(node, self._first)
        self._begin = self._reached({self._first}, start=True)
        self._again = self._reached({self._first}, start=False)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def search(self, text: str) -> bool:
        """Whether it is found anywhere in a text."""
        places = self._begin
        for letter in text:
            if self._last in places:
                return True
            step = self._steps.get((places, letter))
            if step is None:
                step = self._stepped(places, letter)
            places = step
        return self._last in self._reached(set(places), start=not text, end=True)

    def _stepped(self, places: frozenset[int], letter: str) -> frozenset[int]:
        code = ord(letter)
        moved = set()
        for place in places:
            by = self._by[place]
            if by is not None and any(first <= code <= last for first, last in by[0]):
                moved.add(by[1])
        reached = self._reached(moved, start=False) | self._again
        if len(self._steps) >= _CACHED_STEPS:
            self._steps.clear()
        self._steps[places, letter] = reached
        return reached

    def _reached(self, places: set[int], *, start: bool, end: bool = False) -> frozenset[int]:
        """The places to which no character has to be taken."""
        waiting = list(places)
        while waiting:
            place = waiting.pop()
            edge = self._edges[place]
            onward = list(self._on[place])
            if edge is not None and (end if edge[0] else start):
                onward.append(edge[1])
            for other in onward:
                if other not in places:
                    places.add(other)
                    waiting.append(other)
        return frozenset(places)

    def _place(self) -> int:
        self._on.append([])
        self._edges.append(None)
        self._by.append(None)
        return len(self._on) - 1

    def _add(self, node: _Node, start: int) -> int:
        """Add what a node takes from a place on; gives the place where it ends."""
        if isinstance(node, _Sequence):
            for part in node.parts:
                start = self._add(part, start)
            return start
        if isinstance(node, _Repeat):
            return self._add_repeat(node, start)
        end = self._place()
        if isinstance(node, _Either):
            for branch in node.branches:
                first = self._place()
                self._on[start].append(first)
                self._on[self._add(branch, first)].append(end)
        elif isinstance(node, _Edge):
            self._edges[start] = (node.end, end)
        else:
            self._by[start] = (node.ranges, end)
        return end

    def _add_repeat(self, node: _Repeat, start: int) -> int:
        for _ in range(node.least):
            start = self._add(node.of, self._after(start))
        if node.most is None:
            again = self._after(start)
            self._on[self._add(node.of, self._after(again))].append(again)
            return self._after(again)
        end = self._place()
        self._on[start].append(end)
        for _ in range(node.most - node.least):
            start = self._add(node.of, self._after(start))
            self._on[start].append(end)
        return end

    def _after(self, place: int) -> int:
        """A new place that is reached with it, so that no two nodes leave from one place."""
        new = self._place()
        self._on[place].append(new)
        return new


@lru_cache(maxsize=64)
def _matcher(pattern: str) -> _Matcher:
    return _Matcher(_Sequence((_Reader(pattern).read(),)))
