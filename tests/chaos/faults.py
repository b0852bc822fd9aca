"""The faults: each strikes a load again and again while it writes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import asyncpg
from chaos.load import LEASE, MACHINE, Load
from chaos.program import JUMP_OF_ALL
from stage.postgres import Server

Strike = Callable[[Load, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: As the table names it.
        strike: Brings it about for the time of the call; the number counts the calls.
        needs: What the database must have; see `placed`.
        stores: Where there is such a fault.
        strikes: How many times it strikes, at most.
    """

    name: str
    strike: Strike
    needs: str = ""
    stores: tuple[str, ...] = ("sqlite", "postgres")
    strikes: int = 10_000


async def nothing(load: Load, number: int) -> None:
    pass


async def kill(load: Load, number: int) -> None:
    load.kill()


async def freeze(load: Load, number: int) -> None:
    await load.freeze(LEASE * 1.5)


async def restart(load: Load, number: int) -> None:
    assert load.place.server is not None
    if number % 2:
        await load.place.server.crash()
    else:
        await load.place.server.restart()


async def cut(load: Load, number: int) -> None:
    """Lose the answers of commits, close all connections, or let them go silent."""
    proxy = load.place.proxy
    assert proxy is not None
    if number % 3 == 0:
        proxy.cut("after", times=5)
        await MACHINE.sleep(0.5)
        return
    proxy.gone = "stopped" if number % 3 == 1 else "silent"
    await MACHINE.sleep(1.5)
    proxy.reset()
    proxy.gone = None


async def fill(load: Load, number: int) -> None:
    """Leave no room on the disk for a while. A server that has ended for that is started again."""
    place = load.place
    assert place.disk is not None
    ballast = place.disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for part in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while file.write(bytes(part)) == part:
                    pass
    await MACHINE.sleep(1.5)
    ballast.unlink()
    if place.server is not None:
        await _revive(place.server)


async def _revive(server: Server) -> None:
    """Start a server again that has ended, however long its processes take for that."""
    while True:
        try:
            await (await asyncpg.connect(server.url)).close()
        except asyncpg.PostgresError:  # it recovers
            await MACHINE.sleep(0.1)
        except OSError:
            with contextlib.suppress(subprocess.CalledProcessError):
                await server.start()
            await MACHINE.sleep(0.1)
        else:
            return


async def jump(load: Load, number: int) -> None:
    """Have clocks jump: that of one machine, or of all processes that share a file and its machine."""
    await asyncio.to_thread(load.all_start)  # before that the signal would end them
    shared = load.place.store == "sqlite"
    if shared:
        load.skew = 0.0 if load.skew else JUMP_OF_ALL.total_seconds()  # of workers that start later, too
    struck = (*load.workers, *load.others) if shared else load.workers[number % len(load.workers) :][:1]
    for process in struck:
        if process.exit_status is None:
            process.tell(signal.SIGUSR1)


async def fail_over(load: Load, number: int) -> None:
    assert load.place.server is not None
    assert load.place.standby is not None
    await load.place.server.stop()
    await asyncio.to_thread(load.place.standby.promote)
    if load.place.pooler is not None:
        load.place.pooler.lead_to(load.place.standby.url)


async def kill_or_switch(load: Load, number: int) -> None:
    """Kill the primary with its Patroni, and the next time have Patroni switch over."""
    cluster = load.place.cluster
    assert cluster is not None
    await cluster.whole()
    load.takeovers.append((("kill -9", "switch-over")[number % 2], MACHINE.monotonic()))
    await (cluster.switch_over() if number % 2 else cluster.kill_primary())


async def abuse(load: Load, number: int) -> None:
    """Send the server process what no client should."""
    await asyncio.gather(*(_send(load.port, one) for one in _JUNK * 5), return_exceptions=True)


async def _send(port: int, junk: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(junk)
        await writer.drain()
        async with asyncio.timeout(0.3):
            await reader.read(1 << 16)
    finally:
        writer.transport.abort()


# Around a step: before the call and after the effect, before the record and after it; and around the run and its job.
MOMENTS = (
    *("before", "after", "mutation.ran", "commit.before", "commit.after", "workflow.step_ran", "workflow.recorded"),
    *("workflow.sleeps", "worker.claimed", "worker.outcome", "lease.renew"),
)


async def kill_at_moments(load: Load, number: int) -> None:
    """Have each worker kill itself at the n-th time that it comes to a moment, with others for the next ones."""
    if load.moments is None:
        load.moments = (f"{moment}:{_how_often(moment, one)}" for one in itertools.count() for moment in MOMENTS)
        for _ in load.workers[:]:
            load.kill()
    for _ in range(50):
        await MACHINE.sleep(0.2)
        load.replace_dead()


def _how_often(moment: str, number: int) -> int:
    return 2 if moment == "lease.renew" else 20 + number * 37 % 100


async def everything(load: Load, number: int) -> None:
    strikes = [kill, freeze, jump]
    if load.place.proxy is not None:
        strikes += [restart, cut]
    await strikes[number % len(strikes)](load, number)


_SOCKET = (
    b"GET /api/sync HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def _posted(body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return (
        b"POST /api/mutation HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        % (size, body)
    )


_JUNK = [
    os.urandom(4096),  # noqa: TID251 - any bytes will do
    b"GET / HTTP/9.9\r\n" + b"A: b\r\n" * 5000,
    _posted(b'{"path":"chaos.program:put","args":{"writer":"x","number":1e999,"jobs":-1}}'),
    _posted(b'{"path":"chaos.program:enter","args":{"what":"scheduled","number":1}}'),
    _posted(b"[" * 100_000),
    _posted(b'{"path":', length=10_000),
    _posted(b"x" * 2_000_000),
    b"POST /api/mutation HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    _SOCKET + os.urandom(2048),  # noqa: TID251 - as above
    _SOCKET + b"\x81\xfe\x00\x10" + b"\x00\x00\x00\x00" + b'{"type":"Nope"}x',
    _SOCKET + b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff" + b"\x00" * 8,
    _SOCKET,
]

FAULTS = (
    Fault("none", nothing, strikes=0),
    Fault("kill -9", kill),
    Fault("moments of a step", kill_at_moments),
    Fault("stop past the lease", freeze),
    Fault("database restart", restart, stores=("postgres",)),
    Fault("network cut", cut, "proxy", ("postgres",)),
    Fault("full disk", fill, "disk"),
    Fault("clock jumps", jump),
    Fault("hostile clients", abuse, "http"),
    Fault("older program", kill, "older program"),
    Fault("older penstock", kill, "older penstock"),
    Fault("one after the other", everything, "proxy"),
    Fault("fail-over", fail_over, "standby", ("postgres",), strikes=1),
    Fault("fail-over behind PgBouncer", fail_over, "standby behind a pooler", ("postgres",), strikes=1),
    Fault("patroni", kill_or_switch, "patroni", ("postgres",)),
    Fault("patroni behind PgBouncer", kill_or_switch, "patroni behind a pooler", ("postgres",)),
)
