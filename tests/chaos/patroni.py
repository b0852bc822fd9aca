"""Three PostgreSQL servers that Patroni keeps, with one etcd: all on the loopback, in synchronous mode."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from stage.postgres import handle_of, initialized_folder
from stage.servers import PgBouncer, free_port, pgbouncer

from penstock.clock import SystemClock

PROGRAMS = ("patroni", "patronictl", "etcd")
MACHINE = SystemClock()
_PATIENCE = 120.0  # seconds
_TTL, _LOOP_WAIT = 20, 2  # seconds: after these a leader that says nothing has lost its place; and between two looks
_POSTGRES = {
    "fsync": "off",
    "max_connections": 200,
    "wal_log_hints": "on",  # for pg_rewind
}
# What Patroni calls with an action, a role and a name: PgBouncer leads to the server that has become the primary.
_CALLBACK = """#!/bin/sh
case "$2" in master|primary) ;; *) exit 0 ;; esac
sed "s/^\\* = .*/* = host=127.0.0.1 port={port} user=postgres/" {ini} > {ini}.{port} && mv {ini}.{port} {ini}
kill -HUP "$(cat {pid})"
"""


@dataclass
class Node:
    """One server and its Patroni."""

    name: str
    folder: Path
    port: int
    rest: int
    patroni: subprocess.Popen[bytes] | None = None

    def leads(self) -> bool:
        """Whether it takes writes, as it says itself: what others know of it may be a look old."""
        try:
            with urlopen(f"http://127.0.0.1:{self.rest}/primary", timeout=5):
                return True
        except OSError:
            return False

    def look(self) -> dict[str, str]:
        """The role of each member that runs, as this one knows it; nothing if it does not answer."""
        try:
            with urlopen(f"http://127.0.0.1:{self.rest}/cluster", timeout=5) as answer:
                members = json.load(answer)["members"]
        except (OSError, ValueError):
            return {}
        return {one["name"]: one["role"] for one in members if one["state"] in {"running", "streaming"}}


@dataclass
class Patroni:
    """The cluster.

    Attributes:
        url: All servers in one URL; a connection leads to the one that takes writes.
        pooler: A PgBouncer that Patroni leads to the primary, if it was asked for.
    """

    folder: Path
    user: str | None
    bin_path: Path
    nodes: list[Node] = field(default_factory=list)
    pooler: PgBouncer | None = None
    etcd: subprocess.Popen[bytes] | None = None
    _etcd_port: int = 0

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    async def start(self) -> None:
        self._etcd_port, peers = free_port(), free_port()
        own, theirs = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{peers}"
        urls = {"listen-client-urls": own, "advertise-client-urls": own, "listen-peer-urls": theirs}
        urls |= {"initial-advertise-peer-urls": theirs, "initial-cluster": f"default={theirs}"}
        options = [f"--{name}={value}" for name, value in urls.items()]
        self.etcd = self._run("etcd", f"--data-dir={self.folder}/etcd", *options)
        for node in self.nodes:
            self._configure(node)
            self._start(node)
            await self._gather()
        if self.pooler is not None:
            await self.pooler.start()
            self.pooler.lead_to(f"postgresql://postgres@127.0.0.1:{(await self.primary()).port}/postgres")

    async def whole(self) -> None:
        for node in self.nodes:
            if node.patroni is None:
                self._start(node)
        await self._gather()

    async def primary(self) -> Node:
        async with asyncio.timeout(_PATIENCE):
            while True:
                for node in self.nodes:
                    if node.patroni is not None and await asyncio.to_thread(node.leads):
                        return node
                await MACHINE.sleep(0.2)

    async def kill_primary(self) -> None:
        node = await self.primary()
        assert node.patroni is not None
        node.patroni.kill()
        node.patroni.wait()
        node.patroni = None
        os.kill(int((node.folder / "data/postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        await self.primary()

    async def switch_over(self) -> None:
        primary, roles = await self.primary(), await self._roles()
        candidate = next(name for name, role in roles.items() if role == "sync_standby")
        config = ("-c", str(primary.folder / "patroni.json"))
        names = ("--leader", primary.name, "--candidate", candidate)
        asked = self._run("patronictl", *config, "switchover", "chaos", *names, "--force")
        assert await asyncio.to_thread(asked.wait) == 0, (self.folder / "log").read_text()

    def close(self) -> None:
        for node in self.nodes:
            if node.patroni is not None:
                node.patroni.kill()
                node.patroni.wait()
            if (node.folder / "data/postmaster.pid").exists():
                command = [str(self.bin_path / "pg_ctl"), "stop", "-m", "immediate", "-D", str(node.folder / "data")]
                subprocess.run(command, user=self.user, capture_output=True, check=False)
        if self.etcd is not None:
            self.etcd.kill()
            self.etcd.wait()

    async def _gather(self) -> None:
        """Wait until all whose Patroni runs are there: a primary, and a synchronous standby if there are several."""
        count, roles = sum(node.patroni is not None for node in self.nodes), dict[str, str]()
        async with asyncio.timeout(_PATIENCE):
            while len(roles) < count or not {"leader", *["sync_standby"] * (count > 1)} <= {*roles.values()}:
                await MACHINE.sleep(0.2)
                roles = await self._roles()

    async def _roles(self) -> dict[str, str]:
        for node in self.nodes:
            if node.patroni is not None and (roles := await asyncio.to_thread(node.look)):
                return roles
        return {}

    def _start(self, node: Node) -> None:
        node.patroni = self._run("patroni", str(node.folder / "patroni.json"))

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [name, *arguments], user=self.user, env=environment, cwd=self.folder, stdout=log, stderr=log
            )

    def _configure(self, node: Node) -> None:
        node.folder.mkdir()
        postgres: dict[str, Any] = {
            "listen": f"127.0.0.1:{node.port}",
            "connect_address": f"127.0.0.1:{node.port}",
            "data_dir": str(node.folder / "data"),
            "bin_dir": str(self.bin_path),
            "pgpass": str(node.folder / "pgpass"),
            "authentication": {one: {"username": "postgres"} for one in ("superuser", "replication", "rewind")},
            "parameters": {"unix_socket_directories": str(node.folder)},
            "pg_hba": [f"{kind} all 127.0.0.1/32 trust" for kind in ("host all", "host replication")],
        }
        if self.pooler is not None:
            callback = node.folder / "callback"
            places = {"ini": self.pooler.folder / "pgbouncer.ini", "pid": self.pooler.folder / "pgbouncer.pid"}
            callback.write_text(_CALLBACK.format(port=node.port, **places))
            callback.chmod(0o755)
            postgres["callbacks"] = {"on_role_change": str(callback)}
        shared = {"use_pg_rewind": True, "parameters": _POSTGRES}
        times = {"ttl": _TTL, "loop_wait": _LOOP_WAIT, "retry_timeout": 3}
        known = {
            "scope": "chaos",
            "name": node.name,
            "restapi": {"listen": f"127.0.0.1:{node.rest}", "connect_address": f"127.0.0.1:{node.rest}"},
            "etcd3": {"hosts": f"127.0.0.1:{self._etcd_port}"},
            "bootstrap": {"dcs": times | {"synchronous_mode": True, "postgresql": shared}, "initdb": ["no-sync"]},
            "postgresql": postgres,
        }
        (node.folder / "patroni.json").write_text(json.dumps(known))
        shutil.chown(node.folder, self.user or os.geteuid())


@contextmanager
def patroni(*, pooled: bool = False) -> Iterator[Patroni]:
    """Three servers for the time of a block, which starts them; with a PgBouncer in front if `pooled`."""
    handle = handle_of(initialized_folder(), start=False)
    user = handle.system_user if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="penstock-patroni-") as name:
        folder = Path(name)
        shutil.chown(folder, user or os.geteuid())
        nodes = [Node(f"node{number}", folder / f"node{number}", free_port(), free_port()) for number in (1, 2, 3)]
        cluster = Patroni(folder, user, handle.bin_path, nodes)
        try:
            if not pooled:
                yield cluster
                return
            server = f"postgresql://postgres@127.0.0.1:{nodes[0].port}/postgres"
            owner = {"user": user} if user else {}
            with pgbouncer(server, default_pool_size="20", **owner) as cluster.pooler:
                yield cluster
        finally:
            cluster.close()
