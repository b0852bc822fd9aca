"""Durations and times as people write them: 90s, 15m, 2h, 7d; or a time in ISO form."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from penstock.clock import SystemClock
from penstock.errors import ValueInvalid

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST = 100 * 366 * 86400


def read_duration(text: str) -> float:
    """Read a number of seconds, or a number with s, m, h, d or w."""
    found = _AGO.fullmatch(text if text[-1:].isalpha() else f"{text}s")
    seconds = float(found[1]) * _SECONDS[found[2]] if found else -1.0
    if not 0 <= seconds <= _LONGEST:
        raise ValueInvalid(f"{text!r} is no duration; write 90s, 15m, 2h or 7d.")
    return seconds


def read_moment(text: str) -> datetime:
    """Read a time in ISO form, a date, or how long ago; in UTC, unless it names another zone."""
    if _AGO.fullmatch(text):
        return SystemClock().now() - timedelta(seconds=read_duration(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueInvalid(f"{text!r} is no time; write 15m, 2h or 7d for so long ago, or 2026-12-24T18:00.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
