"""Servers beside PostgreSQL, each a child process that may be killed; S3 buckets and folders; sinks and their faults.

Starts Redis, NATS, RabbitMQ and PgBouncer on ports of their own. `python -m stage.servers` is the relay of an example
of a sink, whose relay dies between sending and writing that down, or the receiver of webhooks.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import itertools
import json
import logging
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, unquote, urlsplit

import obstore
import uvicorn
from obstore.store import from_url
from starlette.applications import Starlette
from starlette.routing import Route

from penstock import Retry
from penstock.app import Backend
from penstock.observe import points
from penstock.services.filesweep import FileSweep
from penstock.services.pruner import Pruner
from penstock.store.nouns.outboxes import Step
from penstock.store.session import Statement, reading
from stage.needs import program
from stage.processes import EXAMPLES, TESTS, Process
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
        return [sys.executable, "-m", "stage.servers", "receive", str(self.port), str(self.folder)]

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


_KEYS = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
    "AWS_TIMEOUT": "300s",  # the server takes long to put a gigabyte together
}
_numbers = itertools.count()
_FILE_ROWS = "select key from penstock.stored_file order by key"


@contextmanager
def bucket() -> Iterator[str]:
    """The URL of a bucket, which the environment has the keys of."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - it takes seconds

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with mock.patch.dict(os.environ, {**_KEYS, "AWS_ENDPOINT_URL": endpoint}):
        import boto3  # noqa: PLC0415 - it takes seconds

        name = f"files-{port}-{next(_numbers)}"  # all servers of a process share their buckets
        boto3.client("s3").create_bucket(Bucket=name)
        try:
            yield f"s3://{name}/of/tests"
        finally:
            server.stop()


@contextmanager
def place_of(kind: str, folder: Path) -> Iterator[str]:
    """A place for bytes: a folder inside of another one, or a bucket."""
    if kind == "folder":
        yield str(folder / "files")
        return
    with bucket() as url:
        yield url


def bytes_in(place: str) -> dict[str, int]:
    """The names and sizes of all that is in a folder or a bucket; what uploads have left as well in a folder."""
    if "://" in place:
        store: Any = from_url(place)
        return {one["path"]: one["size"] for page in obstore.list(store) for one in page}
    sizes = {}
    for one in Path(place).rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
            if one.is_file():
                sizes[str(one.relative_to(place))] = one.stat().st_size
    return sizes


async def keys_of(backend: Backend) -> list[str]:
    """The names of the bytes of all files that have a row."""
    store = backend.engine.store
    async with reading(store.begin_read) as session:
        rows = await session.fetch(Statement(store.dialect.translate(_FILE_ROWS)))
    return [row[0] for row in rows]


async def sweep(backend: Backend) -> None:
    """Make the pruner do all that it has to do for files, as it does over days."""
    files = FileSweep(backend.runner)
    for look in (files.delete_unclaimed, files.delete_owed):
        while await look() < 1:
            pass
    await files.delete_left_over()  # the first look of a process only waits
    while await files.delete_left_over() < 1:
        pass
    await files.delete_owed()


def write_bytes(place: str, name: str, content: bytes) -> None:
    """Put bytes into a folder, behind penstock's back."""
    path = Path(place, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def empty(place: str) -> None:
    """Delete all bytes in a folder."""
    for name in bytes_in(place):
        Path(place, name).unlink()


def make_old(place: str, days: float = 2) -> None:
    """Make all bytes in a folder older."""
    for one in Path(place).rglob("*"):
        if one.is_file():
            then = one.stat().st_mtime - timedelta(days=days).total_seconds()
            os.utime(one, (then, then))


async def prune(backend: Backend) -> None:
    """Make one tick of the pruner, as it follows a commit in its process."""
    pruner = backend.make_service("pruner")
    assert isinstance(pruner, Pruner)
    await pruner.tick()


SECRET = "whsec_c3RhZ2Ugc3RhZ2Ugc3RhZ2Ugc3RhZ2U="
LEASE = 1.0
SOON = Retry.fixed(0.1, max_attempts=3)
AT_MOST = timedelta(seconds=2)
BEFORE, MEANWHILE, ALL = 12, 32, 40
CUSTOMERS = 4


@dataclass(frozen=True)
class Event:
    """What the server got of a booking: the id of the message, and which booking it is."""

    id: str
    customer: str
    number: int

    @classmethod
    def parse(cls, text: str | bytes) -> Event:
        said = json.loads(text)
        return cls(said["id"], said["data"]["customer"], said["data"]["seats"])


@dataclass(frozen=True)
class Sink:
    """An example with its server.

    Attributes:
        name: The module of the example.
        broker: The server.
        arrived: All that the server has got, in its order.
    """

    name: str
    broker: Broker
    arrived: Callable[[], Awaitable[list[Event]]]

    @property
    def module(self) -> Any:
        return importlib.import_module(self.name)

    @contextmanager
    def relay(self, url: str, **settings: Any) -> Iterator[Process]:
        """A process that hands over, for the time of a block; it is ready."""
        options = {"lease": LEASE, "synchronous": "normal"} | settings
        process = Process("relay", url, self.name, program="stage.servers", **options)
        try:
            process.expect("ready")
            yield process
        finally:
            process.close()

    async def book(self, backend: Backend, first: int, after: int) -> None:
        for number in range(first, after):
            await backend.run_mutation(self.module.book, f"customer {number % CUSTOMERS}", number)

    async def is_halted(self, backend: Backend) -> bool:
        (outbox,) = await self.module.app.outboxes.list(backend)
        return bool(outbox.halted)

    async def delivered(self, backend: Backend) -> int:
        (outbox,) = await self.module.app.outboxes.list(backend)
        return int(outbox.delivered)

    async def suffer(self, url: str) -> list[Event]:
        """Have relay and server killed while bookings are written; what the server has got in the end."""
        async with self.module.app.open(url) as backend:
            await self._relay_dies(backend, url)
            with self.relay(url) as relay:
                await until(lambda: self._has_delivered(backend, BEFORE))
                await self._server_dies(backend)
                await until(lambda: self._has_delivered(backend, ALL))
                assert relay.stop() == 0
            return await self.arrived()

    # ----- steps

    async def _relay_dies(self, backend: Backend, url: str) -> None:
        """What was sent is not written down, so it comes again."""
        await self.book(backend, 0, BEFORE)
        with self.relay(url, dies="once") as relay:
            assert await asyncio.to_thread(relay.wait) == -signal.SIGKILL
        assert len(await self.arrived()) > await self.delivered(backend) == 0

    async def _server_dies(self, backend: Backend) -> None:
        """Messages flow until then; while it is away, the outbox tells that it is halted."""
        writing = asyncio.create_task(self.book(backend, BEFORE, MEANWHILE))
        await until(lambda: self._has_delivered(backend, BEFORE + 5))
        await self.broker.kill()
        await writing
        await self.book(backend, MEANWHILE, ALL)
        await until(lambda: self.is_halted(backend))
        assert await self.delivered(backend) < ALL
        await self.broker.start()

    async def _has_delivered(self, backend: Backend, count: int) -> bool:
        return await self.delivered(backend) >= count


def check_each(events: list[Event]) -> None:
    """All bookings are there, those of each customer in their order, the same id each time one came."""
    firsts = list({event.id: event for event in events}.values())
    assert sorted(event.number for event in firsts) == list(range(ALL)), "each once, by its id"
    assert set(firsts) == set(events)
    for customer in range(CUSTOMERS):
        numbers = [event.number for event in firsts if event.customer == f"customer {customer}"]
        assert numbers == sorted(numbers), "in the order of its commits"


# ----- as a process of its own: python -m stage.servers relay|receive <arguments…>


def receive(port: str, folder: str) -> None:
    receiving = importlib.import_module("webhook_receiver")
    file = Path(folder) / "events"
    file.touch()

    class Kept(receiving.Receiver):  # type: ignore[name-defined, misc]
        def keep(self, message: str, event: dict[str, Any]) -> None:
            super().keep(message, event)
            with file.open("a") as events:
                events.write(f"{message} {json.dumps(event)}\n")

    receiver = Kept(SECRET)
    for line in file.read_text().splitlines():
        message, _, event = line.partition(" ")
        receiver.events[message] = json.loads(event)
    site = Starlette(routes=[Route("/", receiver.receive, methods=["POST"])])
    uvicorn.run(site, host="127.0.0.1", port=int(port), log_level="warning", lifespan="off")


async def relay(database: str, sink: str, *, dies: str = "", **settings: str) -> None:
    """Hand over until the process is stopped, or has sent something and is to die of it."""
    sys.path.insert(0, str(EXAMPLES / "outbox"))
    app = importlib.import_module(sink).app
    for name, declared in app.outboxes._declared.items():  # tests have less patience than programs
        outbox = dataclasses.replace(declared.outbox, retry=SOON, timeout=AT_MOST)
        app.outboxes._declared[name] = dataclasses.replace(declared, outbox=outbox)
    if dies:
        points.arm("outbox.write", die)
    async with app.open(services=("relay",), config=app.config(database=database, **settings)):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        await stopped.wait()


async def die(step: Step, **_facts: Any) -> None:
    """End the process at once, where messages were sent and it is not written."""
    if step.delivered:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    role, *given = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    options = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if argument.startswith("--"))
    if role == "receive":
        receive(*given)
    else:
        asyncio.run(relay(*given, **options))
