"""Processes of the ledger: started, spoken with over their pipes, and killed by their own number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stage.forks import Fork
from stage.waits import SOON

TESTS = Path(__file__).parent.parent


class Process:
    """A process that runs the ledger, or another program of the stage, within what another command makes for it."""

    def __init__(
        self,
        role: str,
        database: str,
        *arguments: str,
        program: str = "stage.ledger",
        within: Any = (),
        **settings: Any,
    ) -> None:
        options = [f"--{name}={value}" for name, value in settings.items()]
        self._start(program, [role, database, *arguments, *options], {}, within)

    def _start(
        self, module: str, arguments: Sequence[str], environment: dict[str, str], within: Sequence[str] = ()
    ) -> None:
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        known = os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore"} | environment
        (theirs, to), (said, ours) = os.pipe(), os.pipe()
        self._process: Fork | subprocess.Popen[bytes]
        if within:
            command = [*within, sys.executable, "-m", module, *arguments]
            self._process = subprocess.Popen(command, stdin=theirs, stdout=ours, env=known)
        else:
            files = (theirs, ours, 2)
            self._process = Fork(module, arguments, folder=Path.cwd(), environment=known, files=files)
        os.close(theirs)
        os.close(ours)
        self._to, self._said = os.fdopen(to, "w"), os.fdopen(said)

    def expect(self, word: str) -> None:
        """Wait until the process says a word."""
        line = self._said.readline().strip()
        assert line == word, f"it said {line!r}, and ended with {self._process.poll()}"

    def go(self) -> None:
        """Let it begin."""
        self._to.write("\n")
        self._to.flush()

    def stop(self) -> int:
        """Ask it to stop; its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal, and go on."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, as a power cut does."""
        self._process.kill()
        self.wait()

    def freeze(self) -> None:
        """Let no instruction of it run any more."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it run on."""
        self._process.send_signal(signal.SIGCONT)

    @property
    def number(self) -> int:
        """Its number among the processes of the machine."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait for its end; its exit status."""
        return self._process.wait(timeout=SOON)

    def close(self) -> None:
        """Leave nothing behind."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._to.close()
        self._said.close()


class Command(Process):
    """A command of penstock in a process, as a user calls it on a program of the stage."""

    def __init__(self, app: str, database: str, *arguments: str, **environment: str) -> None:
        said = ["--app", app, "--database", database, *arguments]
        self._start("penstock", said, environment)


@contextmanager
def processes(count: int, role: str, database: str, *arguments: str, **settings: Any) -> Iterator[list[Process]]:
    """So many processes, all of them ready, for the time of a block."""
    started = [Process(role, database, *arguments, **settings) for _ in range(count)]
    try:
        for process in started:
            process.expect("ready")
        yield started
    finally:
        for process in started:
            process.close()
