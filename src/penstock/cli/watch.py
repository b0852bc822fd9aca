"""Watches the source of a program, and starts the process again, so that no memory of the old code is left.

The files that were saved are checked then, while the program runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import NoReturn

from penstock.check import baseline
from penstock.check.checker import check
from penstock.check.formats import as_lines
from penstock.check.settings import read_settings
from penstock.cli.check import short_path
from penstock.cli.failure import style
from penstock.cli.options import Options
from penstock.cli.output import say
from penstock.cli.program import find_program
from penstock.clock import SystemClock
from penstock.errors import UsageError

AGAIN = "_PENSTOCK_STARTED_AGAIN"  # in the environment of a process that has replaced itself
_PAUSE = 0.4
_MOST_FOLDERS = 2000  # in a very large folder nobody is kept waiting
_PROJECT_FILES = {"penstock.toml", "pyproject.toml"}
_NO_SOURCE = {"__pycache__", "node_modules", "site-packages", "venv", "env"}


class Watch:
    """Source files in the current folder and in the program's, except the ones that penstock has `written`."""

    def __init__(self, options: Options, written: Collection[Path] = ()) -> None:
        folders = [Path.cwd()]
        with suppress(UsageError):  # who loads the program will say what is wrong
            folders.append(find_program(options.app, Path.cwd()).sources)
        self._written = written
        self._folders = [folder for folder in folders if not any(other in folder.parents for other in folders)]
        self._known = self._look()

    async def next_change(self) -> Path:
        """Wait until a file has been written, added or removed; its path."""
        while not (different := dict(set(self._look().items()) ^ set(self._known.items()))):
            await SystemClock().sleep(_PAUSE)
        remember_saved(different)
        return min(different)

    def _look(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for folder in self._folders:
            for path in _sources(folder):
                if path in self._written:
                    continue
                with suppress(OSError):  # it went away meanwhile
                    stat = path.stat()
                    found[path] = (stat.st_mtime_ns, stat.st_size)
        return found


def _sources(folder: Path) -> Iterator[Path]:
    for place, inner, files in islice(os.walk(folder), _MOST_FOLDERS):
        inner[:] = [
            name
            for name in inner
            if not name.startswith(".") and name not in _NO_SOURCE and not Path(place, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(place, name) for name in files if name.endswith(".py") or name in _PROJECT_FILES)


def start_again(changed: Path, environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by a new one, with these variables besides."""
    folder = Path.cwd()
    name = changed.relative_to(folder) if changed.is_relative_to(folder) else changed
    say(style(f"{name} changed", fg="cyan"))
    sys.stdout.flush()
    arguments = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, arguments, {**os.environ, **environment})  # noqa: S606 - it is this program


_SAVED = "_PENSTOCK_SAVED"  # in the environment of a process that has replaced itself
_MOST = 10  # findings


def remember_saved(files: Collection[Path]) -> None:
    """Leave the process that replaces this one the files to check."""
    os.environ[_SAVED] = os.pathsep.join(str(file) for file in files if file.suffix == ".py")


def check_saved() -> Thread | None:
    """Print what is found in files that were saved before this process began, from a thread; None if none were."""
    saved = os.environ.pop(_SAVED, "")
    if not saved:
        return None
    thread = Thread(target=_check, args=({Path(file).resolve() for file in saved.split(os.pathsep)},), daemon=True)
    thread.start()
    return thread


def _check(saved: Collection[Path]) -> None:
    try:
        settings, folder = read_settings(Path.cwd())
        report = check([short_path(folder / one) for one in settings.paths], settings.codes())
        findings = [one for one in report.findings if one.path.resolve() in saved]
        if settings.baseline:
            findings = baseline.without_known(folder / settings.baseline, findings, report.lines)
    except ValueError as error:
        say(style(f"penstock check: {error}", dim=True))
        return
    if findings:
        more = f"; the first {_MOST} of {len(findings)}" if len(findings) > _MOST else ""
        shown = as_lines(findings[:_MOST], report.lines)
        say(style(f"{shown}penstock check --explain {findings[0].code} says why{more}.", dim=True))
