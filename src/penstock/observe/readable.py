"""Numbers, durations and sizes as people read them, on the command line and on the dashboard."""

from __future__ import annotations

from datetime import timedelta

_PRECISE, _LEAST_MS = 0.01, 0.0001  # seconds, below which a duration has a digit more, and another unit
_TIMES = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_SIZES = (("GiB", 2**30, 1), ("MiB", 2**20, 0))


def amount(number: int, noun: str, nouns: str = "", *, most: int | None = None) -> str:
    """A number of things, such as ``1 row`` or ``1,200 rows``.

    Args:
        number: The number.
        noun: One of them.
        nouns: The plural, if it has no s.
        most: The number up to which they were counted: ``10,000+ rows``.
    """
    return f"{cap(number, most)} {noun if number == 1 else nouns or noun + 's'}"


def cap(number: int, most: int | None) -> str:
    """A number that was counted up to `most`, such as ``10,000+``."""
    return f"{number:,}{'+' if most is not None and number >= most else ''}"


def span(length: timedelta | float | None) -> str:
    """Format a duration in its largest unit with a value of two or more, such as ``90.0 s`` or ``5 h``."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if not seconds:
        return "-" if seconds is None else "0 s"
    if 0 < seconds < _LEAST_MS:
        return f"{seconds * 1e6:.0f} µs"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.{int(seconds < _PRECISE)}f} ms"
    unit, size = next(((unit, size) for unit, size in _TIMES if seconds >= 2 * size), _TIMES[-1])
    return f"{seconds / size:.{int(size == 1)}f} {unit}"


def size_of(size: int) -> str:
    """A number of bytes, such as ``12 MiB``."""
    found = ((unit, of, digits) for unit, of, digits in _SIZES if size >= of)
    unit, of, digits = next(found, ("KiB", 2**10, 0))
    return f"{size / of:,.{digits}f} {unit}"
