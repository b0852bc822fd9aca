"""The sides that are measured, and the environments of their programs, made when they are missing.

Each peer has its newest version in a folder of its own, ``benchmarks/.peers/<name>``, which no other package shares;
remove it to have them anew. A side whose environment cannot be made is skipped, as is one whose server is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parent.parent.parent
_ENVIRONMENTS = ROOT / "benchmarks" / ".peers"
_PROGRAMS = Path(__file__).parent / "programs"
_NODE = "node@22"  # from its package, since peers need a newer one than systems have
_NEWEST_TRIED = 5

Server = Literal["postgres", "sqlite", "redis"]


class Skip(Exception):
    """A side cannot be measured here; the message says why."""


@dataclass(frozen=True, slots=True)
class Side:
    """A program that is measured.

    Attributes:
        name: The name of its program.
        server: What holds its jobs.
        packages: What is installed for it, itself first; nothing for penstock's own programs.
        language: What its program is written in.
    """

    name: str
    server: Server = "postgres"
    packages: tuple[str, ...] = ()
    language: Literal["python", "node"] = "python"

    @property
    def folder(self) -> Path:
        """Where its packages are."""
        return _ENVIRONMENTS / self.name

    @property
    def workplace(self) -> Path:
        """The folder its program runs in."""
        return ROOT if self.language == "python" else self.folder

    @property
    def command(self) -> list[str]:
        """Its program, without arguments."""
        if self.language == "node":
            return [str(self.folder / "node_modules" / ".bin" / "node"), str(_PROGRAMS / f"{self.name}.mjs")]
        python = str(self.folder / "bin" / "python") if self.packages else sys.executable
        return [python, "-m", f"benchmarks.peers.programs.{self.name}"]

    def prepare(self) -> str:
        """Make its environment if there is none; the version of its package.

        Raises:
            Skip: It cannot be made, or its server is not installed.
        """
        if self.server == "redis" and shutil.which("redis-server") is None:
            raise Skip("redis-server is not installed")
        if not self.packages:
            return ""
        ready = self.folder / ".ready"
        if not ready.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            version = self._install_python() if self.language == "python" else self._install_node()
            ready.write_text(version, "utf-8")
        return ready.read_text("utf-8")

    def _install_python(self) -> str:
        _run([sys.executable, "-m", "venv", str(self.folder)])
        python = str(self.folder / "bin" / "python")
        _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.packages])
        name = self.packages[0].partition("[")[0]
        return _run([python, "-c", f"from importlib.metadata import version; print(version({name!r}))"]).strip()

    def _install_node(self) -> str:
        npm = shutil.which("npm")
        if npm is None:
            raise Skip("npm is not installed")
        itself, *others = self.packages
        _run([npm, "install", "--silent", "--no-audit", "--no-fund", _NODE], self.folder)
        path = f"{self.folder / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}"
        versions = json.loads(_run([npm, "view", itself, "versions", "--json"], self.folder))
        newest_first = list(reversed(versions))[:_NEWEST_TRIED]
        for version in newest_first:  # a dependency of the newest may not be published yet
            try:
                _run([npm, "install", "--no-audit", "--no-fund", f"{itself}@{version}", *others], self.folder, path)
            except Skip:
                if version == newest_first[-1]:
                    raise
            else:
                return str(version)
        raise Skip(f"npm knows no version of {itself}")


def _run(command: Sequence[str], folder: Path = ROOT, path: str = "") -> str:
    environment = {**os.environ, **({"PATH": path} if path else {})}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        raise Skip(f"its environment cannot be made: {lines[-1] if lines else ended.returncode}")
    return ended.stdout


PENSTOCK = Side("penstock")
PENSTOCK_SQLITE = Side("penstock", "sqlite")
BARE = Side("bare")
BARE_COPY = Side("bare_copy")
PGQUEUER = Side("pgqueuer", packages=("pgqueuer[asyncpg]", "uvloop"))
GRAPHILE_WORKER = Side("graphile_worker", packages=("graphile-worker", "pg"), language="node")
PG_BOSS = Side("pg_boss", packages=("pg-boss", "pg"), language="node")
PROCRASTINATE = Side("procrastinate", packages=("procrastinate", "psycopg[binary,pool]", "uvloop"))
ABSURD = Side("absurd", packages=("absurd-sdk", "absurdctl", "psycopg[binary]", "uvloop"))
DBOS = Side("dbos", packages=("dbos",))
HUEY = Side("huey", "sqlite", packages=("huey",))
SAQ = Side("saq", "redis", packages=("saq[redis,hiredis]", "typing_extensions", "uvloop"))
CELERY = Side("celery", "redis", packages=("celery[redis]", "hiredis"))
