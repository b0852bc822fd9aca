"""Constants of filters in SQLite's SQL, exact to the last bit.

SQLite reads long fractions differently on different machines, so a float is written with integers alone.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from penstock.reactive.expression import Constant
from penstock.schema.fields import Kind
from penstock.store.sql.dialect import Convert
from penstock.values import INT64_MAX, INT64_MIN

_WHOLE = 2**53
_STEP = 62
_MARGIN = 1e-9  # far more than SQLite's reading of a number may be off
_TINY = 1e-300


def text_literal(text: str) -> str:
    """A text. No word in braces stands in it, so that it fits into a template."""
    pieces = ["'" + piece.replace("'", "''") + "'" for piece in re.split(r"(?<=\{)(?=\w)", text)]
    return pieces[0] if len(pieces) == 1 else f"({' || '.join(pieces)})"


def integer_literal(value: int) -> str:
    """An integer of 64 bits."""
    return f"({value})" if value < 0 else str(value)


def real_literal(value: float) -> str:
    """A float, to the last bit."""
    if math.isinf(value):
        return "9e999" if value > 0 else "(-9e999)"
    if value.is_integer() and abs(value) < _WHOLE:
        return f"({int(value)}.0)"
    fraction, exponent = math.frexp(value)
    text, exponent = f"cast({int(fraction * _WHOLE)} as real)", exponent - 53
    while exponent:
        step = min(abs(exponent), _STEP)
        text += f" {'*' if exponent > 0 else '/'} cast({1 << step} as real)"
        exponent -= step if exponent > 0 else -step
    return f"({text})"


def constant_literal(constant: Constant, kind: Kind, encode: Convert | None) -> str:
    """A constant as a value of a kind, as columns of that kind hold it."""
    value: Any = constant.value
    if kind is Kind.REAL:
        return real_literal(float(value))
    if kind is Kind.BYTES:
        return f"x'{value.hex()}'"
    stored = value if encode is None else encode(value)
    return text_literal(stored) if isinstance(stored, str) else integer_literal(stored)


def near(found: str, operator: str, value: Decimal, *, positive: bool = True) -> str:
    """A condition that is never false where the comparison holds, or where it fails if not `positive`.

    SQLite has read the number with a small error.
    """
    about = float(value) if abs(value) < Decimal("1e308") else math.copysign(math.inf, value)
    margin = abs(about) * _MARGIN + _TINY
    lower, upper = (
        (repr(max(about, -1e308) - margin), repr(min(about, 1e308) + margin)) if margin < math.inf else ("", "")
    )
    if not lower:
        lower, upper = ("1e307", "9e999") if about > 0 else ("-9e999", "-1e307")
    above, below = f"{found} >= {lower}", f"{found} <= {upper}"
    if operator == "==":
        return f"({above} and {below})" if positive else "1"
    return f"({above})" if (operator in {">", ">="}) is positive else f"({below})"


def compare_whole(found: str, operator: str, value: Decimal) -> str:
    """An integer of 64 bits compared with any number, by the whole numbers next to it."""
    floor, ceiling = (int(value.to_integral_value(way)) for way in (ROUND_FLOOR, ROUND_CEILING))
    if operator == "==":
        return f"{found} = {integer_literal(floor)}" if floor == ceiling and _fits(floor) else "0"
    if operator in {">", "<="}:
        edge, beyond = floor, (operator == "<=") is (floor > 0)
    else:
        edge, beyond = ceiling, (operator == "<") is (ceiling > 0)
    return f"{found} {operator} {integer_literal(edge)}" if _fits(edge) else str(int(beyond))


def _fits(value: int) -> bool:
    return INT64_MIN <= value <= INT64_MAX
