"""penstock: a transactional backend for Python that lives in your own database.

Nothing is imported before it is used: importing the client loads neither the server nor a driver. `__init__.pyi` lists
the public names, each with the module that it comes from.
"""

from __future__ import annotations

import gc
import importlib
import re
from pathlib import Path
from typing import Any

_STUB = Path(__file__).with_suffix(".pyi").read_text("utf-8")
_HOME = {name: home for home, name in re.findall(r"^from (\S+) import (\w+) as", _STUB, re.MULTILINE)}
__all__ = sorted(_HOME)  # noqa: PLE0605 - the stub lists them one by one


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    collects = gc.isenabled()
    gc.disable()  # an import leaves no garbage, and to search for it takes a sixth of the time
    try:
        value = getattr(importlib.import_module(home), name)
    finally:
        if collects:
            gc.enable()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
