"""Recipes as their readers start them: each in a folder of its own, with the commands that its page names."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path

from stage.needs import program
from stage.processes import EXAMPLES
from stage.servers import free_port
from stage.waits import SOON, until


class Program:
    """A program that runs until the test ends.

    Args:
        words: What it is called with; ``{port}`` in them is its port.
        folder: Where it runs.
        environment: Its variables.
        log: The file for what it prints.
        port: Its port, if its words do not name it.
    """

    def __init__(
        self, words: Sequence[str], folder: Path, environment: dict[str, str], log: Path, port: int | None
    ) -> None:
        self.port, self._log = port or free_port(), log
        self.url = f"http://127.0.0.1:{self.port}"
        self._listens = port is not None or any("{port}" in word for word in words)
        found = [word.replace("{port}", str(self.port)) for word in words]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                found,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, true: Callable[[], object]) -> None:
        """Wait until something is true, while the program runs."""

        def look() -> bool:
            assert self.process.poll() is None, self.log
            return bool(true())

        try:
            asyncio.run(until(look))
        except TimeoutError:
            raise AssertionError(self.log) from None

    def answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return not self._listens

    def stop(self) -> int:
        """End it as a supervisor would; its exit status."""
        self.process.terminate()
        return self.process.wait(SOON)


class Recipe:
    """A copy of ``examples/recipes/name``, and the programs that run in it.

    Args:
        name: Its folder; an empty one begins without files.
        folder: Where the copy is made.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder / (name or "recipe")
        source = EXAMPLES / "recipes" / name
        shutil.copytree(source, self.folder, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
        self.environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
        self._started: list[Program] = []

    def run(self, command: str, *words: str) -> str:
        """Run a command to its end; what it has printed."""
        done = subprocess.run(
            [command_path(command), *words], cwd=self.folder, env=self.environment, check=False, timeout=SOON,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    def start(self, command: str, *words: str, port: int | None = None) -> Program:
        """Start a program, and wait until its port answers if it has one."""
        log = self.folder / f"log{len(self._started)}"
        started = Program([command_path(command), *words], self.folder, self.environment, log, port)
        self._started.append(started)
        started.wait_for(started.answers)
        return started

    def within(self, name: str) -> Recipe:
        """The programs of a folder in it, such as one of two releases."""
        found = copy(self)
        found.folder = self.folder / name
        return found

    def close(self) -> None:
        for started in self._started:
            with suppress(ProcessLookupError):  # with the processes that it has started
                os.killpg(started.process.pid, signal.SIGKILL)
            started.process.wait()


def command_path(command: str) -> str:
    """A command of the environment that runs the tests, or else of the system."""
    own = Path(sysconfig.get_path("scripts")) / command
    return str(own) if own.exists() else program(command)
