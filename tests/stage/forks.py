"""Processes that begin as `python -m module` or `python file.py` does, forked from one that has imported penstock.

Most tests with processes would otherwise spend their time on imports. Each test process has one such server. It has run
no code of penstock, opened nothing, and has one thread.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import penstock

_PACKAGE = Path(penstock.__file__).parent
_WITHOUT = {"__main__", "testing", "conformance"}  # what programs do not import


class Fork:
    """A process that runs a program; it is used as `subprocess.Popen` is.

    Args:
        program: A module, or the path of a file.
        arguments: What it is called with.
        folder: Where it is called.
        environment: Its variables, and no others.
        files: Its standard input, output and errors.
        terminal: Whether its standard input becomes its own terminal, so that Ctrl-C reaches it.
    """

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: dict[str, str],
        files: tuple[int, int, int],
        terminal: bool = False,
    ) -> None:
        given = (program, tuple(arguments), str(folder), environment, tuple(map(_Sent, files)), terminal)
        self._process = _SERVER.Process(target=_run, args=given)
        self._process.start()
        self.pid: int = self._process.pid or 0

    def poll(self) -> int | None:
        """Its exit status, negative after a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit status."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


class _Sent:
    """A file that goes to the new process."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> Any:
        return _received, (DupFd(self._number),)


def _received(sent: Any) -> int:
    number: int = sent.detach()
    return number


def _run(
    program: str,
    arguments: tuple[str, ...],
    folder: str,
    environment: dict[str, str],
    files: tuple[int, int, int],
    terminal: bool,
) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(0, encoding="utf-8", closefd=False),
        os.fdopen(1, "w", encoding="utf-8", buffering=1 if os.isatty(1) else -1, closefd=False),
        os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False),
    )
    if terminal:
        _take_terminal()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    named = environment.get("PYTHONPATH", "").split(os.pathsep)
    first = str(Path(program).parent) if program.endswith(".py") else folder
    sys.path[:] = dict.fromkeys([first, *filter(None, named), *sys.path])
    sys.argv[:] = [program, *arguments]
    warnings.simplefilter("ignore")
    if program.endswith(".py"):
        runpy.run_path(program, None, "__main__")
    else:
        runpy.run_module(program, None, "__main__", alter_sys=True)


def _take_terminal() -> None:
    import fcntl  # noqa: PLC0415 - not on every system
    import termios  # noqa: PLC0415

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _modules() -> list[str]:
    """All of penstock that a program may import, and the drivers."""
    paths = [path.relative_to(_PACKAGE.parent).with_suffix("") for path in sorted(_PACKAGE.rglob("*.py"))]
    own = [".".join(path.parts).removesuffix(".__init__") for path in paths if not _WITHOUT.intersection(path.parts)]
    return [__name__, "asyncpg", "uvicorn", *own]


_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(_modules())
