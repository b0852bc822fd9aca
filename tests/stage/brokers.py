"""Servers beside PostgreSQL, each a child process on a port of its own, which may be killed and started again.

Owns how Redis, NATS, RabbitMQ and PgBouncer are started; whatever they keep lies in one folder. Leaves what is in them
to `stage/sinks`.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from stage.needs import program
from stage.processes import EXAMPLES, TESTS
from stage.waits import until


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Broker:
    """A server.

    Args:
        folder: What it keeps, and its log.

    Attributes:
        url: Where its clients connect.
    """

    scheme = "http"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"{self.scheme}://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    async def start(self) -> None:
        self._process = self._spawn(self.command())
        await until(self._answers)

    async def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

    async def revive(self) -> None:
        """Start it again, if a test that failed has left it dead."""
        if self._process is None or self._process.poll() is not None:
            await self.start()

    def close(self) -> None:
        _end(self._process)

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(), cwd=self.folder
            )

    async def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text(errors="replace")
        try:
            _reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True


class Redis(Broker):
    """A Redis that answers when what it was told is on the disk."""

    scheme = "redis"

    def command(self) -> list[str]:
        settings = {"bind": "127.0.0.1", "port": str(self.port), "save": "", "appendonly": "yes"}
        settings |= {"appendfsync": "always", "dir": str(self.folder)}
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        return [program("redis-server"), *words]


class Nats(Broker):
    scheme = "nats"

    def command(self) -> list[str]:
        words = ["-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder)]
        return [program("nats-server"), *words]


class RabbitMQ(Broker):
    """A RabbitMQ of one node, and the daemon that knows where Erlang's nodes are: it is started too, and ended."""

    scheme = "amqp"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._names = free_port()
        self._daemon: subprocess.Popen[bytes] | None = None
        (folder / "plugins").write_text("[].")
        (folder / "rabbitmq.conf").write_text("log.console.level = warning\n")

    def command(self) -> list[str]:
        return [program("rabbitmq-server")]

    def environment(self) -> dict[str, str]:
        folder = str(self.folder)
        node = {
            "ALLOW_INPUT": "1",  # then it is one process, without a shell before it
            "NODENAME": "penstock@localhost",
            "NODE_IP_ADDRESS": "127.0.0.1",
            "NODE_PORT": str(self.port),
            "DIST_PORT": str(free_port()),
            "MNESIA_BASE": folder,
            "LOG_BASE": folder,
            "LOGS": "-",
            "GENERATED_CONFIG_DIR": folder,
            "PID_FILE": f"{folder}/pid",
            "ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "CONF_ENV_FILE": f"{folder}/none",
            "SERVER_ADDITIONAL_ERL_ARGS": "-noinput -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"
            " +S 1:1 +A 4",
        }
        erlang = {"HOME": folder, "ERL_EPMD_PORT": str(self._names), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        return os.environ | erlang | {f"RABBITMQ_{name}": value for name, value in node.items()}

    async def start(self) -> None:
        if self._daemon is None:
            self._daemon = self._spawn([program("epmd", "rabbitmq-server"), "-port", str(self._names)])
        await super().start()

    def close(self) -> None:
        super().close()
        _end(self._daemon)


class Receiver(Broker):
    def command(self) -> list[str]:
        return [sys.executable, "-m", "stage.sinks", "receive", str(self.port), str(self.folder)]

    def environment(self) -> dict[str, str]:
        given = (str(TESTS), str(EXAMPLES / "outbox"), os.environ.get("PYTHONPATH"))
        path = os.pathsep.join(filter(None, given))
        return os.environ | {"PYTHONPATH": path}


@contextmanager
def running(kind: type[Broker]) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="penstock-broker-", ignore_cleanup_errors=True) as folder:
        own = kind(Path(folder))
        try:
            asyncio.run(own.revive())
            yield own
        finally:
            own.close()


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()


_SETTINGS = {
    "listen_addr": "127.0.0.1",
    "unix_socket_dir": "",
    "auth_type": "any",
    "pool_mode": "transaction",
    "default_pool_size": "4",
    "max_client_conn": "500",
    "server_login_retry": "0.2",  # seconds after which a server that was away is tried again
    "server_fast_close": "1",
}


class PgBouncer(Broker):
    """A running PgBouncer.

    Args:
        server: URL of the PostgreSQL server.
        folder: Where its settings and its log are; readable by all.
        **settings: Settings that differ.

    Attributes:
        url: Where clients connect; leads to the database that `server` names.
    """

    def __init__(self, server: str, folder: Path, **settings: str) -> None:
        super().__init__(folder)
        self.url = self.through(server)
        pid = {"pidfile": str(folder / "pgbouncer.pid"), "listen_port": str(self.port)}
        lines = [f"{name} = {value}" for name, value in (_SETTINGS | pid | _user(server) | settings).items()]
        text = f"[databases]\n* = {_server(server)}\n[pgbouncer]\n" + "\n".join(lines) + "\n"
        (folder / "pgbouncer.ini").write_text(text)

    def command(self) -> list[str]:
        return [program("pgbouncer"), str(self.folder / "pgbouncer.ini")]

    async def stop(self) -> None:
        """End it at once, with all connections, as a power cut does."""
        await self.kill()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def lead_to(self, server: str) -> None:
        """Lead to another server from now on, as an operator has it do after a failover."""
        assert self._process is not None
        file = self.folder / "pgbouncer.ini"
        lines = file.read_text().splitlines()
        file.write_text("\n".join(f"* = {_server(server)}" if one.startswith("* = ") else one for one in lines) + "\n")
        self._process.send_signal(signal.SIGHUP)

    def through(self, url: str) -> str:
        """The same database of the server, through this."""
        return urlsplit(url)._replace(netloc=f"postgres@127.0.0.1:{self.port}", query="").geturl()


@contextmanager
def pgbouncer(server: str, **settings: str) -> Iterator[PgBouncer]:
    """A PgBouncer for the time of a block; the caller starts it."""
    with tempfile.TemporaryDirectory(prefix="penstock-pgbouncer-") as folder:
        Path(folder).chmod(0o777)
        own = PgBouncer(server, Path(folder), **settings)
        try:
            yield own
        finally:
            own.close()


def _server(url: str) -> str:
    """The server as PgBouncer's settings name it; each client gets the database that it asks for."""
    parts = urlsplit(url)
    host = parse_qs(parts.query).get("host", [parts.hostname or "127.0.0.1"])[0]
    named = {"host": host, "port": parts.port or 5432, "user": unquote(parts.username or "postgres")}
    if parts.password:
        named["password"] = unquote(parts.password)
    return " ".join(f"{name}={value}" for name, value in named.items())


def _user(url: str) -> dict[str, str]:
    """Who it becomes if root starts it, as it refuses to be root: the owner of the server's socket."""
    if os.geteuid() != 0:
        return {}
    host = parse_qs(urlsplit(url).query).get("host", [""])[0]
    return {"user": Path(host).owner() if host.startswith("/") else pwd.getpwnam("nobody").pw_name}
