"""Errors as texts, for storage, logs and output.

There is always a text: errors of users have code of their own, and an error in that code must not spread.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, TracebackType

_MOST_OF_GROUP = 3  # errors of a group that are named with it
_MACHINERY = (
    "<frozen ",
    "<string>",  # as the __init__ of a dataclass
    f"{Path(__file__).parents[1]}{os.sep}",
    *(f"{Path(sysconfig.get_path('purelib')) / name}{os.sep}" for name in ("click", "pydantic")),
    *(f"{Path(sysconfig.get_path('stdlib')) / name}{os.sep}" for name in ("asyncio", "importlib", "concurrent")),
)
_Place = tuple[str, CodeType, int]  # equal codes may come from different files
_known: dict[tuple[_Place, ...], str] = {}
_MOST_KNOWN = 256
# A frame, in an exception group behind a bar, with its source and marks, or how often it is repeated.
_FRAME = re.compile(r'^((?: *\| )?)  File "(.+?)", line \d+.*\n(?:\1    .*\n|\1  \[Previous line .*\n)*', re.MULTILINE)


def message_of(error: BaseException) -> str:
    try:
        if isinstance(error, BaseExceptionGroup):
            return f"{error}: {'; '.join(map(error_text, error.exceptions[:_MOST_OF_GROUP]))}"
        return str(error)
    except Exception as refused:  # noqa: BLE001 - it has code of its own
        return f"<it cannot say why: its str() raised {type(refused).__name__}>"


def error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {message_of(error)}"


def trace_text(error: BaseException) -> str:
    trace = error.__traceback__
    is_first = error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
    try:
        if trace is None or not is_first or isinstance(error, BaseExceptionGroup):
            return "".join(traceback.format_exception(error))
        last = traceback.TracebackException(type(error), error, trace, limit=0, compact=True)
        return "".join((_frames_of(trace), *last.format_exception_only()))
    except Exception:  # noqa: BLE001 - notes and causes have code of their own, too
        return error_text(error)


def _frames_of(trace: TracebackType) -> str:
    """The frames of a traceback. To format them takes a hundred times as long as to look them up."""
    places = tuple(_places(trace))
    if (text := _known.get(places)) is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        text = _known[places] = "".join(("Traceback (most recent call last):\n", *traceback.format_tb(trace)))
    return text


def _places(trace: TracebackType | None) -> Iterator[_Place]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_frame.f_code, trace.tb_lasti
        trace = trace.tb_next


def frames_text(error: BaseException) -> str:
    """The frames of the program that an error went through, the innermost first, as JavaScript lists them."""
    found = [frame for frame in traceback.extract_tb(error.__traceback__) if is_program(frame.filename)]
    places = [(one.name, _shorten(one.filename), one.lineno, (one.colno or 0) + 1) for one in reversed(found)]
    return "".join(f"\n    at {name} ({file}:{line}:{column})" for name, file, line, column in places)


def _shorten(file: str) -> str:
    with suppress(OSError, ValueError):  # there may be no way to it from here
        return os.path.relpath(file)
    return file


def trim(trace: str) -> str:
    """A traceback without the frames of penstock and its libraries; as it is if that would leave none."""
    if not any(is_program(frame[2]) for frame in _FRAME.finditer(trace)):
        return trace
    return _FRAME.sub(lambda frame: frame[0] if is_program(frame[2]) else "", trace)


def is_program(file: str) -> bool:
    """Whether a file is one of the program, or of a library that it uses itself."""
    return not file.startswith(_MACHINERY)
