"""Texts of users as a terminal may show them: characters that would steer the terminal are shown instead of obeyed.

Owns which ones these are. JSON for programs is left as it is.
"""

from __future__ import annotations

_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡"}  # Unicode has a sign for each
_STEERING = _PICTURES | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}  # those of 8 bits have none
_IN_TEXT = str.maketrans({code: sign for code, sign in _STEERING.items() if chr(code) not in "\n\t"})
_IN_LINE = str.maketrans(_STEERING | {ord("\n"): "⏎", ord("\t"): " "})


def visible(text: str) -> str:
    """A text of one line or more."""
    return text.replace("\r\n", "\n").translate(_IN_TEXT)


def visible_line(text: str) -> str:
    """A text on one line."""
    return text.replace("\r\n", "\n").translate(_IN_LINE)
