"""The processes of the demo: started, killed, and stopped by their ids."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import httpx

_PATIENCE = 60.0


class DemoFailed(Exception):
    """The demo cannot go on."""


@dataclass
class Process:
    """A process of the demo, which logs into a file."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; if it ran before, again."""
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(  # noqa: S603 - its own commands
                self.command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which stops all others
            )

    async def answer(self, url: str) -> None:
        """Wait until it answers."""
        began = monotonic()
        async with httpx.AsyncClient() as http:
            while True:
                with suppress(httpx.TransportError):
                    if (await http.get(url)).is_success:
                        return
                if not self.is_running or monotonic() > began + _PATIENCE:
                    raise DemoFailed(f"{shlex.join(self.command)} did not start:\n{self.log.read_text()[-2000:]}")
                await asyncio.sleep(0.05)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.popen is not None and self.popen.poll() is None

    def kill(self) -> int:
        """End it at once, as a crash does; the id it had."""
        assert self.popen is not None  # noqa: S101 - for type checkers
        self.popen.kill()
        self.popen.wait()
        return self.popen.pid


def stop(processes: Iterable[Process]) -> None:
    """End processes, gracefully if they are quick enough."""
    running = [process.popen for process in processes if process.popen is not None and process.is_running]
    try:
        for popen in running:
            popen.terminate()
        for popen in running:
            with suppress(subprocess.TimeoutExpired):
                popen.wait(15)
    finally:
        for popen in running:
            popen.kill()
            popen.wait()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports
