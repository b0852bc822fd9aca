"""Places in source code, as errors name them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from types import CodeType
from typing import Any


def place_of(code: CodeType) -> str:
    """The place of code, such as ``shop/orders.py:12``; relative to the working directory if it is inside."""
    return place(code.co_filename, code.co_firstlineno)


def place_of_handler(handler: Callable[..., Any]) -> str:
    """The place of a function, without the decorators that wrap it."""
    code = getattr(inspect.unwrap(handler), "__code__", None)
    return "unknown file" if code is None else place_of(code)


def place(file: str, line: int) -> str:
    with suppress(OSError):  # the working directory may be gone
        if file.startswith(os.path.join(os.getcwd(), "")):  # noqa: PTH109, PTH118 - texts are compared
            file = os.path.relpath(file)
    return f"{file}:{line}"
