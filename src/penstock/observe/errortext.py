"""Errors as texts, for storage, logs and output.

There is always a text: errors of users have code of their own, and an error in that code must not spread.
"""

from __future__ import annotations

import traceback


def message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as refused:  # noqa: BLE001 - it has code of its own
        return f"<it cannot say why: its str() raised {type(refused).__name__}>"


def error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {message_of(error)}"


def trace_text(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - notes and causes have code of their own, too
        return error_text(error)
