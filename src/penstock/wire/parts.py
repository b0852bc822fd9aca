"""Cuts a JSON text into the members of an object, or the objects of an array, and decodes nothing inside of them.

For texts that are too large to decode at once, or that cannot be decoded as a whole: each part then fails alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.errors import InputError

_TOKEN = re.compile(rb'"(?>[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)  # takes time in proportion to the text
_COLON = re.compile(rb"\s*:\s*")
_OPENING, _CLOSING = b"[{", b"]}"
# a quote inside of a text has a backslash before it, so this is not inside of one
_LAST = re.compile(rb',(\s*"\w+"\s*:\s*(?:\d+|"[^"\\]*")\s*(?:,\s*"\w+"\s*:\s*(?:\d+|"[^"\\]*")\s*)*\})\s*\Z')


def members(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The names and values of an object, as they are written. A value after which the text breaks off is no JSON."""
    depth, key, begun = 0, b"", 0
    for token in _TOKEN.finditer(text):
        kind = text[token.start()]
        if kind in _OPENING:
            depth += 1
        elif kind in _CLOSING:
            depth -= 1
            if depth <= 0:
                if key:
                    yield key, text[begun : token.start()] + text[token.end() :].strip()
                return
        elif depth == 1 and (colon := _COLON.match(text, token.end())):
            if key:
                value = text[begun : token.start()].rstrip()
                yield key, value[:-1] if value.endswith(b",") else value + b","
            key, begun = token[0], colon.end()
    if key:
        yield key, text[begun:] + b","


def objects(text: bytes) -> Iterator[bytes]:
    """The objects of an array.

    Raises:
        InputError: It holds anything else, or its brackets do not match.
    """
    depth = begun = ended = 0
    between = b"["
    for token in _TOKEN.finditer(text):
        kind = text[token.start()]
        if kind in _OPENING:
            depth += 1
            if depth == 2:  # noqa: PLR2004 - inside of the array
                begun = token.start()
                if text[ended:begun].strip() != between:
                    break
        elif kind in _CLOSING:
            depth -= 1
            if depth == 1:
                ended, between = token.end(), b","
                yield text[begun:ended]
            elif depth <= 0:
                if text[ended:].strip().removeprefix(b"[") == b"]":
                    return
                break
    raise InputError("This is no array of objects.")


def outer_members(head: bytes, tail: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The members at both ends of an object; of those at its end only numbers and plain texts."""
    if last := _LAST.search(tail):
        yield from members(b"{" + last[1])
    yield from members(head)


def outer_objects(head: bytes, tail: bytes) -> Iterator[Iterator[tuple[bytes, bytes]]]:
    """The members at the ends of the objects of an array in an object, in the way of `outer_members`."""
    _, begins, first = head.partition(b"[")
    if begins:
        yield members(first)
    if (last := _LAST.search(tail)) and (ended := tail[: last.start()].rstrip()).endswith(b"]"):
        yield outer_members(b"", ended[:-1])
