"""Hears of writes to a file from the kernel, whichever program writes. Linux has this (inotify)."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from pathlib import Path

_MODIFIED = 0x2  # IN_MODIFY
_ENOUGH = 64 * 1024  # bytes of events to read at once


class FileWatch:
    """Sets `changed` when somebody has written to a file, until it is closed. Use it in the event loop.

    Raises:
        OSError: The kernel does not tell, or not now: the file is missing, or too many are watched.
    """

    def __init__(self, path: Path) -> None:
        if sys.platform != "linux":
            raise OSError("This system has no inotify.")
        libc = ctypes.CDLL(None, use_errno=True)
        self.changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise _failure(path)
        if libc.inotify_add_watch(self._descriptor, os.fsencode(path), _MODIFIED) < 0:
            error = _failure(path)
            os.close(self._descriptor)
            raise error
        self.listen()

    def listen(self) -> None:
        """Hear of the next write."""
        self.changed.clear()
        self._loop.add_reader(self._descriptor, self._hear)

    def close(self) -> None:
        """Hear no more."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _hear(self) -> None:
        # Until `listen` the loop is left alone: a busy file has thousands of writes a second.
        self._loop.remove_reader(self._descriptor)
        os.read(self._descriptor, _ENOUGH)
        self.changed.set()


def _failure(path: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(path))
