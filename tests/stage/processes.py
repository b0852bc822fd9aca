"""Processes: started, spoken with over their pipes, and killed by their own number.

They are forked from one that has imported penstock: most tests with processes would otherwise spend their time on
imports. That one has run no code of penstock, opened nothing, and has one thread.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import penstock
from stage.waits import SOON

TESTS = Path(__file__).parent.parent


class Process:
    """A process that runs the ledger, or another program of the stage, within what another command makes for it."""

    def __init__(
        self,
        role: str,
        database: str,
        *arguments: str,
        program: str = "programs.ledger",
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
        line = self._said.readline().strip()
        assert line == word, f"it said {line!r}, and ended with {self._process.poll()}"

    def go(self) -> None:
        self._to.write("\n")
        self._to.flush()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def tell(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    @property
    def number(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        return self._process.poll()

    def wait(self) -> int:
        return self._process.wait(timeout=SOON)

    def close(self) -> None:
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
    started = [Process(role, database, *arguments, **settings) for _ in range(count)]
    try:
        for process in started:
            process.expect("ready")
        yield started
    finally:
        for process in started:
            process.close()


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
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


class _Sent:
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


EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, database_url: str) -> str:
    """Run ``examples/name.py`` on a database to its end; what it has printed."""
    ours, theirs = os.pipe()
    with os.fdopen(ours) as printed:
        process = Fork(
            str(EXAMPLES / f"{name}.py"),
            [],
            folder=Path.cwd(),
            environment={**os.environ, "DATABASE_URL": database_url},
            files=(0, theirs, theirs),
        )
        os.close(theirs)
        said = printed.read()
    assert process.wait() == 0, said
    return said
