"""A PgBouncer before PostgreSQL, which lends few connections for a transaction each, and may stop and start again."""

from __future__ import annotations

import os
import pwd
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from stage.brokers import Broker
from stage.needs import program

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
