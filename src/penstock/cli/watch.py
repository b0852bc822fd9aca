"""Watches a program's source for changes.

Owns what counts as source: Python files and project files, outside of hidden folders, environments and caches. Is told
of changes by watchfiles if that is installed, and otherwise looks now and then.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from penstock.clock import SystemClock

_PAUSE = 0.4
_LONGEST_PAUSE_MS = 1000
_MOST_FOLDERS = 2000  # whoever starts in a folder that holds everything is not kept waiting
_PROJECT_FILES = {"penstock.toml", "pyproject.toml"}
_NO_SOURCE = {"__pycache__", "node_modules", "site-packages", "venv", "env"}


class Watch:
    """The source files in some folders and the folders inside them, as they were when the watch began."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = [folder for folder in folders if not any(other in folder.parents for other in folders)]
        self._known = self._look()

    async def changed(self) -> Path:
        """Wait until a file has been written, added or removed; which."""
        async for _moment in self._moments():
            different = dict(set(self._look().items()) ^ set(self._known.items()))
            if different:
                return min(different)
        raise AssertionError("moments end only with their task")

    async def _moments(self) -> AsyncIterator[None]:
        """Moments at which to look: now, and whenever something may have changed."""
        yield
        watchfiles = _watchfiles()
        if watchfiles is not None:
            folders = sorted({path.parent for path in self._known} | set(self._folders))
            with suppress(OSError, RuntimeError):  # the system has no watches left, or knows none
                async for _changes in watchfiles.awatch(
                    *folders,
                    recursive=False,
                    watch_filter=lambda _change, path: _is_source(Path(path).name),
                    debounce=200,
                    rust_timeout=_LONGEST_PAUSE_MS,
                    yield_on_timeout=True,
                ):
                    yield
        while True:
            await SystemClock().sleep(_PAUSE)
            yield

    def _look(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for folder in self._folders:
            for path in _sources(folder):
                try:
                    stat = path.stat()
                except OSError:
                    continue  # it went away meanwhile
                found[path] = (stat.st_mtime_ns, stat.st_size)
        return found


def _sources(folder: Path) -> Iterator[Path]:
    for place, inner, files in islice(os.walk(folder), _MOST_FOLDERS):
        inner[:] = [name for name in inner if _may_hold_source(Path(place, name))]
        yield from (Path(place, name) for name in files if _is_source(name))


def _is_source(name: str) -> bool:
    return name.endswith(".py") or name in _PROJECT_FILES


def _may_hold_source(folder: Path) -> bool:
    return not folder.name.startswith(".") and folder.name not in _NO_SOURCE and not (folder / "pyvenv.cfg").exists()


def _watchfiles() -> Any:
    try:
        return importlib.import_module("watchfiles")
    except ImportError:
        return None
