"""``--processes N``: one supervisor, and N processes that do the same work.

Owns starting them, handing on signals, and starting one again that has died. Leaves the work, the grace time and the
leases to each process. The supervisor opens no database.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import field, replace
from threading import Thread

import click

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.dataclass import dataclass
from penstock.errors import ConfigError
from penstock.observe.logs import event

processes_option = click.option(
    "--processes", type=click.IntRange(1), default=1, show_default=True, help="How many processes to run."
)

_PLACE = "_PENSTOCK_PROCESS"  # in the environment of a supervised process: its number, and what it has inherited
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_READY = b"+"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # before a process is started again that ended soon after its start
_STEADY = 60.0  # seconds after which a process has not ended soon


@dataclass(frozen=True)
class Place:
    """The place of a process below a supervisor."""

    number: int  # its number, from 0 on
    line: socket.socket  # a socket to the supervisor, which closes when that one ends
    listener: socket.socket | None  # the socket on which all processes accept connections, if they serve

    def ready(self, _url: str = "") -> None:
        """Tell the supervisor that this process does its work."""
        with suppress(OSError):
            self.line.send(_READY)

    def stop_with_supervisor(self) -> None:
        """Stop, as by a signal, when the supervisor has gone."""

        def wait() -> None:
            with suppress(OSError):
                self.line.recv(1)
            os.kill(os.getpid(), signal.SIGTERM)

        Thread(target=wait, daemon=True).start()


def find_place() -> Place | None:
    """Find the place of this process below a supervisor; None if it was started by itself."""
    if (given := os.environ.pop(_PLACE, None)) is None:
        return None
    number, line, listener = map(int, given.split())
    place = Place(number, socket.socket(fileno=line), socket.socket(fileno=listener) if listener >= 0 else None)
    for inherited in (place.line, place.listener):
        if inherited is not None:
            inherited.set_inheritable(False)
    place.stop_with_supervisor()
    return place


def config_at(place: Place | None, config: Config) -> Config:
    """The settings of a process: each shows its metrics on a port of its own, from `metrics_port` on."""
    if place is None or not config.metrics_port:
        return config
    return replace(config, metrics_port=config.metrics_port + place.number)


def supervise(count: int, listener: socket.socket | None = None) -> int:
    """Run this command line in so many processes until SIGINT or SIGTERM, or until one cannot start; its exit code.

    A process that ends without being told to is started again. SIGINT and SIGTERM are handed on; so is a second one,
    after which nothing is waited for.

    Args:
        count: The number of processes.
        listener: A bound socket, on which all of them accept connections.

    Raises:
        ConfigError: This system has no way to hand on sockets and signals.
    """
    if os.name != "posix":
        raise ConfigError("--processes does not work on Windows.", fix="Start the command several times.")
    return asyncio.run(_Supervisor(count, listener).run())


@dataclass
class _Supervisor:
    count: int
    listener: socket.socket | None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    running: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    code: int = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for told in _SIGNALS:
            loop.add_signal_handler(told, self._hand_on, told)
        event("processes.started", processes=self.count, pid=os.getpid())
        async with asyncio.TaskGroup() as group:
            for number in range(self.count):
                group.create_task(self._keep(number))
        event("processes.stopped", code=self.code)
        return self.code

    def _hand_on(self, number: int) -> None:
        self.stopping.set()
        for process in self.running.values():
            with suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, number: int) -> None:
        """Have a process run in one place until all are to stop."""
        pause, was_ready, clock = 0.0, False, SystemClock()
        while not self.stopping.is_set():
            began = clock.monotonic()
            code, ready = await self._run_once(number)
            if self.stopping.is_set():
                self.code = self.code or code
                return
            was_ready |= ready
            if not was_ready:  # what keeps it from starting keeps the others too
                self.code = code or 1
                self._hand_on(signal.SIGTERM)
                return
            steady = clock.monotonic() - began >= _STEADY
            pause = 0.0 if steady else min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)
            event("processes.ended", logging.WARNING, number=number, code=code, again_in=pause)
            await clock.wait(self.stopping, pause)

    async def _run_once(self, number: int) -> tuple[int, bool]:
        """Run a process to its end: its exit code, and whether it was ready."""
        line, its_line = socket.socketpair()
        with line, its_line:
            inherited = [its_line.fileno(), *([] if self.listener is None else [self.listener.fileno()])]
            listener = -1 if self.listener is None else self.listener.fileno()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *sys.orig_argv[1:]),
                env={**os.environ, _PLACE: f"{number} {its_line.fileno()} {listener}"},
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which hands it on
            )
            its_line.close()
            self.running[number] = process
            if self.stopping.is_set():  # meanwhile
                process.terminate()
            line.setblocking(False)
            ready = await asyncio.get_running_loop().sock_recv(line, 1) == _READY
            code = await process.wait()
            del self.running[number]
        return (128 - code if code < 0 else code), ready
