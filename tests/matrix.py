"""Runs the README's second command, ``make test``, in the surroundings that people have: ``make matrix``.

Each row of the table is one such place: a set of optional programs, a version of Python, a user, a folder. Rows that
differ in programs only run the tests that ask for a program; the others run all tests. ``ONLY=text``
runs the rows whose name holds the text. It clones the repository, so commit first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from stage.needs import OLDEST, PLACES

ROOT = Path(__file__).parents[1]
SERVERS = ("pgbouncer", "redis-server", "nats-server", "rabbitmq-server", "promtool", "ip", "git")
OPTIONAL = (*SERVERS, "node", "npm", "chromium")
WITH = {"epmd": "rabbitmq-server", "erl": "rabbitmq-server", "npx": "npm"}  # which program each comes with
HOMES = tuple(map(str, Path.home().glob(".pyenv/versions/*/bin")))  # of other versions of Python
NOBODY = "65534"
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
# What the shell of a developer may set, and tests must not take up.
SHELL = {
    "DATABASE_URL": "postgresql://nobody:wrong@127.0.0.1:9/none",
    "PENSTOCK_DATABASE": "sqlite:////nowhere/none.db",
    "PENSTOCK_LOG_LEVEL": "error",
    "PGHOST": "127.0.0.9",
    "PGPORT": "9",
    "PGUSER": "nobody",
    "PGPASSWORD": "wrong",
    "PGDATABASE": "none",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
    "FORCE_COLOR": "1",
    "COLUMNS": "60",
    "TZ": "Asia/Kathmandu",
    "LC_ALL": "C",
    "DJANGO_SETTINGS_MODULE": "mine.settings",
    "NODE_ENV": "production",
}


@dataclass(frozen=True)
class Row:
    """One place to run the tests in.

    Attributes:
        name: What distinguishes it.
        programs: The optional programs that it has.
        fakes: Shell scripts in place of programs.
        packages: Whether npm has installed the packages of JavaScript.
        python: The command of its interpreter.
        settings: Variables of its environment.
        before: Words before the command that runs the tests.
        whole: Whether all tests run.
        folder: The name of the folder.
    """

    name: str
    programs: tuple[str, ...] = OPTIONAL
    fakes: Mapping[str, str] = field(default_factory=dict)
    packages: bool = True
    python: str = "python3"
    settings: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    whole: bool = False
    folder: str = "penstock"


def rows() -> Iterator[Row]:
    """All of them, the most common first."""
    yield Row("laptop of a web developer", ("git", "node", "npm", "chromium"), packages=False)
    for name in SERVERS:
        yield Row(f"{name} alone", (name,), packages=False)
    yield Row("node alone", ("node",))
    yield Row("node and npm alone", ("node", "npm"))
    yield Row("chromium alone", ("chromium",), packages=False)
    for name in OPTIONAL:
        yield Row(f"all but {name}", tuple(other for other in OPTIONAL if other != name))
    yield Row("old programs", fakes=dict.fromkeys(OLDEST, "echo version 0.1"))
    yield Row("programs that do not start", fakes=dict.fromkeys(OLDEST, "exit 1"))
    yield Row("nothing optional", (), packages=False, whole=True)
    yield Row("settings of a shell", settings=SHELL, whole=True)
    yield Row("space and umlauts in the folder", folder="my wörk (1)", whole=True)
    yield Row("no rights", before=AS_NOBODY, whole=True)
    yield Row("no network", before=ALONE, whole=True)
    for version in ("3.11", "3.12", "3.13"):
        yield Row(f"Python {version}", python=f"python{version}", whole=True)


def main(only: str) -> int:
    """Run the rows whose name holds a text, and print a line for each; the exit status says whether all were green."""
    logs = Path(tempfile.mkdtemp(prefix="penstock-matrix-logs-"))
    ended = [report(row, logs / f"{row.name}.log") for row in rows() if only in row.name]
    return 0 if ended and all(ended) else 1


def report(row: Row, log: Path) -> bool:
    """Run one row and print how it ended; whether no test was red."""
    python = interpreter(row)
    if row.before and os.geteuid() != 0:
        said, fine = "left out: only root can try it", True
    elif python is None:
        said, fine = f"left out: no {row.python} that can make environments", True
    else:
        with log.open("w") as out:
            fine = run(row, python, out)
        counts = re.findall(r"^\W*((?:\d+ \w+, )*\d+ \w+) in [\d.]+s", log.read_text(errors="replace"), re.MULTILINE)
        said = f"{'green' if fine else 'RED'}: {counts[-1] if counts else 'no test ran'}" + f"; see {log}" * (not fine)
    print(f"{row.name:<34} {said}", flush=True)
    return fine


def interpreter(row: Row) -> str | None:
    """The path of the row's Python, which the row's user may run; the shims of version managers are looked through."""
    asks = ["-c", "import sys, ensurepip; print(sys.executable)"]
    for place in (*PLACES, *HOMES):
        for folder in place.split(os.pathsep):
            path = shutil.which(row.python, path=folder)
            command = [*_as_user(row), path or "", *asks]
            if path and (done := subprocess.run(command, capture_output=True, text=True, check=False)).returncode == 0:
                return done.stdout.strip()
    return None


def run(row: Row, python: str, out: IO[str]) -> bool:
    """Clone the repository into the row's folder, and run the command there; whether it was green."""
    with tempfile.TemporaryDirectory(prefix="penstock-matrix-") as home:
        Path(home).chmod(0o755)
        folder, path = Path(home, row.folder), link_programs(row, Path(home, "bin"))

        def call(*words: str, check: bool = True, **settings: str) -> bool:
            given = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "TESTS_"))}
            given |= {"PATH": path, "HOME": home, **settings}
            return subprocess.run(words, cwd=folder, env=given, stdout=out, stderr=out, check=check).returncode == 0

        folder.mkdir()
        call("git", "clone", "--quiet", "--no-hardlinks", str(ROOT), ".", PATH=os.environ["PATH"])
        if row.packages:
            for below in ("examples/chat", "tests/clients"):
                words = ("npm", "ci", "--prefix", below, "--ignore-scripts", "--silent")
                call(*words, PATH=os.environ["PATH"], HOME=str(Path.home()))
        if row.before == AS_NOBODY:
            call("chown", "-R", f"{NOBODY}:{NOBODY}", home)
        make = ("make", f"PYTHON={python}")
        call(*_as_user(row), *make, ".venv/.ready", HOME=home if row.before == AS_NOBODY else str(Path.home()))
        settings = {"PENSTOCK_TEST_PATH": path, **row.settings}
        if not row.whole:
            settings["PYTEST_ADDOPTS"] = " ".join(asking_for_programs(folder / "tests"))
        return call(*row.before, *make, "test", check=False, **settings)


def _as_user(row: Row) -> tuple[str, ...]:
    return row.before if row.before == AS_NOBODY else ()


def link_programs(row: Row, folder: Path) -> str:
    """A folder with links to all programs of this machine, less the optional ones that the row lacks."""
    folder.mkdir()
    lacks = {*OPTIONAL} - {*row.programs}
    for place in ":".join(PLACES).split(":"):
        for file in Path(place).glob("*"):
            link = folder / file.name
            if WITH.get(file.name, file.name) not in lacks and not link.is_symlink() and os.access(file, os.X_OK):
                link.symlink_to(file)
    for name, script in row.fakes.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def asking_for_programs(tests: Path) -> Iterator[str]:
    """The files of tests that look for an optional program, through whichever module."""
    texts = {file: file.read_text("utf-8") for file in tests.rglob("*.py")}
    modules, more = {"needs"}, {"needs"}
    while more:
        uses = re.compile(rf"^\s*from stage\.({'|'.join(more)}) import", re.MULTILINE)
        found = {file.stem for file, text in texts.items() if file.parent.name == "stage" and uses.search(text)}
        more = found - modules
        modules |= more
    uses = re.compile(rf"^\s*from stage\.({'|'.join(modules)}) import|\bpooled_url\b|\bpooler\b", re.MULTILINE)
    for file, text in sorted(texts.items()):
        if file.name.startswith("test_") and uses.search(text):
            yield str(file.relative_to(tests.parent))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [""]))
