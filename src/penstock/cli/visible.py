"""Texts of users as a terminal may show them: characters that would steer the terminal are shown instead of obeyed.

Owns which ones these are. In JSON they are written as escapes, which programs read as the characters they are.
"""

from __future__ import annotations

_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡"}  # Unicode has a sign for each
_TURNING = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))  # lines, and which way they run
_STEERING = (
    _PICTURES
    | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}  # those of 8 bits have no sign
    | {code: f"\\u{code:04x}" for code in _TURNING}
)
_IN_JSON = str.maketrans({code: f"\\u{code:04x}" for code in _STEERING if code >= ord("\x7f")})  # the rest json escapes
_IN_TEXT = str.maketrans({code: sign for code, sign in _STEERING.items() if chr(code) not in "\n\t"})
_IN_LINE = str.maketrans(_STEERING | {ord("\n"): "⏎", ord("\t"): " "})


def visible(text: str) -> str:
    return text.replace("\r\n", "\n").translate(_IN_TEXT)


def visible_line(text: str) -> str:
    if text.isprintable():  # as nearly all lines of a log are, which takes a fifth of the time
        return text
    return text.replace("\r\n", "\n").translate(_IN_LINE)


def first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def visible_json(text: str) -> str:
    return text.translate(_IN_JSON)
