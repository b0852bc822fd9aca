"""Live queries of many clients over sockets: from a write to the last client, memory, the return after a restart.

The server is ``penstock serve`` in a process of its own. All clients are in this process: they read frames and decode
no JSON, so that little of what is measured is theirs. A time begins before the write is sent, over HTTP.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import connect

from benchmarks.databases import StoreName
from benchmarks.footprint import dev_program, memory_of
from benchmarks.harness import Bar, Bench, Benchmark, Side, compare, spread
from benchmarks.tokens import issuer, token

_PROGRAM = """
from penstock import App, Index, MutationCtx, QueryCtx, Table

app = App()


class Cell(Table):
    number: int
    value: str

    by_number = Index("number", unique=True)


async def _row(ctx: QueryCtx, number: int) -> Cell:
    return await ctx.db.query(Cell).with_index(Cell.by_number, number=number).unique()


@app.mutation
async def fill(ctx: MutationCtx, first: int, last: int, size: int) -> None:
    for number in range(first, last):
        await ctx.db.insert(Cell(number=number, value="." * size))


@app.mutation
async def put(ctx: MutationCtx, number: int, value: str) -> None:
    await ctx.db.patch(Cell, (await _row(ctx, number)).id, value=value)


@app.query
async def cell(ctx: QueryCtx, number: int) -> str:
    return (await _row(ctx, number)).value


@app.query
async def beside_the_first(ctx: QueryCtx, number: int) -> str:
    return (await _row(ctx, 0)).value + (await _row(ctx, number)).value
"""
_WITH_USERS = (
    _PROGRAM.replace("App()", f"App(auth=[{issuer('ES256')}])").replace("import App,", "import App, CustomJWT,")
    + """

ran = 0


@app.query
async def own(ctx: QueryCtx, number: int) -> str:
    global ran
    ran += 1
    identity = await ctx.auth.get_user_identity()
    return (identity.subject if identity else "") + (await _row(ctx, number)).value


@app.query
async def runs(ctx: QueryCtx) -> int:
    return ran
"""
)
_PATIENCE = 120.0
_AT_ONCE = 100
_PER_SECOND = 10
_QUERIES, _SIZE = 5, 2048
_CALLERS = 20
_TEXT, _PING, _PONG = 0x81, 0x89, 0x8A
_FIRST = b'{"type":"Connect","sessionId":"%s","connectionCount":0,"lastCloseReason":"InitialConnect"}'


class Socket(asyncio.Protocol):
    """A client that is as light as can be.

    Attributes:
        heard: Called with each message.
        lost: Called when the connection ends.
    """

    def __init__(self, number: int, first: Sequence[bytes]) -> None:
        self.heard: Callable[[bytes], None] = lambda _message: None
        self.lost: Callable[[], None] = lambda: None
        self._number = number
        self._first = first
        self._buffer = b""
        self._open = False
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for a web socket."""
        self._transport = transport
        key = base64.b64encode(self._number.to_bytes(16))
        self._transport.write(
            b"GET /api/sync HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n"
        )

    def send(self, *messages: bytes, kind: int = _TEXT) -> None:
        """Send messages; masked with zeros, so that they go as they are."""
        self._transport.write(b"".join(bytes([kind]) + _length(len(body)) + bytes(4) + body for body in messages))

    def data_received(self, data: bytes) -> None:
        """Take what has come apart."""
        self._buffer += data
        if not self._open:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            if b" 101 " not in head:
                raise ConnectionError(head.decode())
            self._open, self._buffer = True, rest
            self.send(*self._first)
        buffer, start = self._buffer, 0
        while len(buffer) - start >= 2:  # noqa: PLR2004 - the least head of a frame
            length, begin = buffer[start + 1], start + 2
            extra = {126: 2, 127: 8}.get(length, 0)
            if extra:
                length, begin = int.from_bytes(buffer[begin : begin + extra]), begin + extra
            if begin + length > len(buffer):
                break
            kind, body, start = buffer[start], buffer[begin : begin + length], begin + length
            if kind == _TEXT:
                self.heard(body)
            elif kind == _PING:
                self.send(body, kind=_PONG)
        self._buffer = buffer[start:]

    def connection_lost(self, _error: Exception | None) -> None:
        """Say so."""
        self.lost()

    def close(self) -> None:
        """End the connection."""
        self.lost = lambda: None
        if self._transport is not None:
            self._transport.abort()


def _length(size: int) -> bytes:
    if size < 126:  # noqa: PLR2004 - what one byte holds; see RFC 6455
        return bytes([0x80 | size])
    return b"\xfe" + size.to_bytes(2)


class Crowd:
    """Clients that all wait for the same thing.

    Args:
        address: Host and port of the server.
        queries: The queries that each of them watches.
    """

    def __init__(self, address: tuple[str, int], queries: Sequence[Sequence[tuple[str, dict[str, Any]]]]) -> None:
        self._address = address
        self._queries = queries
        self._mark = b"Transition"
        self._waiting: set[int] = set()
        self._arrived = asyncio.Event()
        self.sockets: dict[int, Socket] = {}
        self.returns = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Connect all, some at once, and wait until each has its first answers."""
        numbers = range(len(self._queries))
        come = self.expect(b"QueryUpdated", numbers)
        for first in range(0, len(numbers), _AT_ONCE):
            await asyncio.gather(*map(self._one, numbers[first : first + _AT_ONCE]))
        await come()

    async def _one(self, number: int) -> None:
        adds = [
            {"type": "Add", "queryId": at, "udfPath": path, "args": [args]}
            for at, (path, args) in enumerate(self._queries[number])
        ]
        watch = {"type": "ModifyQuerySet", "baseVersion": 0, "newVersion": 1, "modifications": adds}
        session = f"00000000-0000-4000-8000-{number:012x}".encode()
        socket = Socket(number, [_FIRST % session, json.dumps(watch).encode()])
        socket.heard, socket.lost = partial(self._hear, number), partial(self._lose, number)
        self.sockets[number] = socket
        try:
            await asyncio.get_running_loop().create_connection(lambda: socket, *self._address)
        except OSError:
            self._lose(number)

    def _hear(self, number: int, message: bytes) -> None:
        if number in self._waiting and self._mark in message:
            self._waiting.discard(number)
            if not self._waiting:
                self._arrived.set()

    def _lose(self, number: int) -> None:
        if not self.returns:
            return
        task = asyncio.get_running_loop().create_task(self._again(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _again(self, number: int) -> None:
        await asyncio.sleep(0.1 + number % 100 / 1000)  # as clients do: after 100 ms, and not all at once
        await self._one(number)

    def expect(self, mark: bytes, numbers: Sequence[int]) -> Callable[[], Awaitable[Any]]:
        """What waits until so many clients have got a message with a mark."""
        self._mark, self._waiting, self._arrived = mark, set(numbers), asyncio.Event()
        return partial(asyncio.wait_for, self._arrived.wait(), _PATIENCE)

    def close(self) -> None:
        """End all."""
        self.returns = False
        for socket in self.sockets.values():
            socket.close()


@asynccontextmanager
async def _serving(
    bench: Bench, store: StoreName, rows: int, size: int = 10, program: str = _PROGRAM
) -> AsyncIterator[tuple[tuple[str, int], httpx.AsyncClient, asyncio.subprocess.Process]]:
    """A server of so many rows; its address, what calls it over HTTP, and its process."""
    async with (
        bench.databases.fresh(store) as url,
        dev_program(bench, program, "serve", url) as (process, host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=_PATIENCE) as http,
    ):
        for first in range(0, rows, 500):
            await _call(http, "main:fill", first=first, last=min(first + 500, rows), size=size)
        yield (host, port), http, process


@asynccontextmanager
async def _watching(
    address: tuple[str, int], queries: Sequence[Sequence[tuple[str, dict[str, Any]]]]
) -> AsyncIterator[Crowd]:
    """A crowd that has its first answers."""
    crowd = Crowd(address, queries)
    await crowd.connect()
    try:
        yield crowd
    finally:
        crowd.close()


def _cells(count: int) -> list[list[tuple[str, dict[str, Any]]]]:
    """A query of its own for each client."""
    return [[("main:cell", {"number": number})] for number in range(count)]


async def _call(http: httpx.AsyncClient, path: str, **args: Any) -> None:
    answer = (await http.post("/api/mutation", json={"path": path, "args": args})).json()
    if answer.get("status") != "success":
        raise RuntimeError(answer)


async def _writes(
    crowd: Crowd, http: httpx.AsyncClient, count: int, whom: Callable[[int], tuple[int, Sequence[int]]], pause: float
) -> list[float]:
    """Write again and again; milliseconds each time until the last client that is concerned has it."""
    taken = []
    for number in range(count):
        row, concerned = whom(number)
        value = f"mark-{number:06d}."
        come = crowd.expect(value.encode(), concerned)
        begun = time.perf_counter()
        await asyncio.gather(_call(http, "main:put", number=row, value=value), come())
        taken.append((time.perf_counter() - begun) * 1000)
        await asyncio.sleep(max(0.0, pause - taken[-1] / 1000))
    return taken


def _spent(process: asyncio.subprocess.Process) -> float:
    """Milliseconds of processor time that the event loop of a server has had."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text("ascii").split()[0]) / 1_000_000


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1] if len(values) > 1 else values[0]


async def one_query(bench: Bench, store: StoreName) -> float:
    """All clients watch one query: p95 until the last one has what was written."""
    clients = bench.sizes.sockets
    async with (
        _serving(bench, store, 1) as (address, http, process),
        _watching(address, _cells(1) * clients) as crowd,
    ):
        before = _spent(process)
        taken = await _writes(crowd, http, bench.sizes.socket_writes, lambda _: (0, range(clients)), 1 / _PER_SECOND)
        bench.report("processor_ms_per_write", (_spent(process) - before) / len(taken))
    bench.row(spread(f"{clients} clients", taken, " ms"))
    return _p95(taken)


async def own_queries(bench: Bench, store: StoreName) -> float:
    """Each client watches a query of its own, and each write concerns one of them."""
    clients = bench.sizes.sockets
    async with (
        _serving(bench, store, clients) as (address, http, _),
        _watching(address, _cells(clients)) as crowd,
    ):
        chosen = lambda number: (at := number * 7919 % clients, [at])  # noqa: E731 - far from each other
        taken = await _writes(crowd, http, 2 * bench.sizes.socket_writes, chosen, 0.5 / _PER_SECOND)
    bench.row(spread(f"{clients} queries", taken, " ms"))
    return _p95(taken)


async def all_stale(bench: Bench, store: StoreName) -> float:
    """Each client watches a query of its own, and each write concerns all of them: seconds."""
    clients = bench.sizes.sockets
    queries = [[("main:beside_the_first", {"number": number})] for number in range(clients)]
    async with (
        _serving(bench, store, clients) as (address, http, _),
        _watching(address, queries) as crowd,
        _calling(address) as waits,
    ):
        taken = await _writes(crowd, http, bench.sizes.turns, lambda _: (0, range(clients)), 0.5)
    bench.report("longest_wait_of_others_ms", max(waits))
    bench.row(spread(f"{clients} queries", taken, " ms"))
    return max(taken) / 1000


_CALLER = """
import http.client, select, sys, time
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=60)
longest = 0.0
while not select.select([sys.stdin], [], [], 0.005)[0]:
    begun = time.perf_counter()
    body = '{"path": "main:cell", "args": {"number": 1}}'
    connection.request("POST", "/api/query", body, {"content-type": "application/json"})
    assert b"success" in connection.getresponse().read()
    longest = max(longest, time.perf_counter() - begun)
print(longest * 1000)
"""


@asynccontextmanager
async def _calling(address: tuple[str, int]) -> AsyncIterator[list[float]]:
    """Somebody else, in another process, who calls a query again and again; the longest wait, once it is over."""
    waits = list[float]()
    given = (sys.executable, "-c", _CALLER, address[0], str(address[1]))
    caller = await asyncio.create_subprocess_exec(*given, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield waits
    finally:
        said, _ = await caller.communicate(b"enough")
    waits.append(float(said))


async def socket_memory(bench: Bench, store: StoreName) -> float:
    """Kilobytes of a server for each client with five queries of 2 KB, of which no two are the same."""
    clients = bench.sizes.sockets
    async with _serving(bench, store, clients * _QUERIES, _SIZE) as (address, _, process):
        before = memory_of(process.pid)[0]
        queries = [
            [("main:cell", {"number": number}) for number in range(first, first + _QUERIES)]
            for first in range(0, clients * _QUERIES, _QUERIES)
        ]
        async with _watching(address, queries):
            await asyncio.sleep(1)
            taken = memory_of(process.pid)[0] - before
    bench.row(f"{clients} clients with {_QUERIES} queries of {_SIZE} bytes", f"{taken:.0f} MB")
    return taken * 1000 / clients


async def large_messages(bench: Bench, store: StoreName) -> float:
    """Megabytes that a server grows, at its peak, while 24 clients send it messages of 31 and of 40 MiB at once."""
    photo = b'"%b",' % (b"eHh4" * 7000)
    small = b'"y",', b'"ab",', b"1.5,", b"[1,2],", b'"\\u00e9\\n",', b'{"a":1},'  # many values take the most memory
    parts = *small, photo, b'{"a":"%b"},' % (b"x" * 64)
    call = b'{"type":"Mutation","requestId":0,"udfPath":"main:put","args":[{"number":0,"value":[%bnull]}]}'
    query = b'{"type":"Add","queryId":%d,"udfPath":"main:cell","args":[{"number":[%bnull]}]}'
    change = b'{"type":"ModifyQuerySet","baseVersion":0,"newVersion":1,"modifications":[%b]}'
    messages = [call % (part * (mebibytes * 1024**2 // len(part))) for part in parts for mebibytes in (31, 40)]
    messages += [
        change % b",".join(query % (at, part * (31 * 1024 // len(part))) for at in range(1000)) for part in parts
    ]
    async with _serving(bench, store, 1) as (address, http, process):
        before = memory_of(process.pid)[0]
        patient: dict[str, Any] = {"max_size": None, "compression": None, "ping_interval": None}

        async def send(client: int) -> None:
            message = messages[client]
            async with connect(f"ws://{address[0]}:{address[1]}/api/sync", **patient) as socket:
                await socket.send((_FIRST % b"%d" % client).decode())
                await socket.send(message, text=True)
                while b'"success":false' not in (answer := await socket.recv(decode=False)) and (
                    b"QueryFailed" not in answer
                ):
                    pass

        async with asyncio.timeout(_PATIENCE):
            await asyncio.gather(*map(send, range(len(messages))))
        await _call(http, "main:put", number=0, value="z")
        peak = re.search(r"VmHWM:\s+(\d+)", _status(process.pid))
    grown = int(peak[1]) / 1000 - before if peak else math.inf
    bench.row(f"{len(messages)} clients with messages of 31 and 40 MiB", f"{grown:.0f} MB")
    return grown


def _status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text("utf-8")


async def back_after_restart(bench: Bench, store: StoreName) -> float:
    """Seconds from when a server answers again until all clients have their answers."""
    clients, taken = bench.sizes.sockets, []
    async with bench.databases.fresh(store) as url:
        async with dev_program(bench, _PROGRAM, "serve", url) as (_, host, port):
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=_PATIENCE) as http:
                await _call(http, "main:fill", first=0, last=clients, size=10)
            crowd = Crowd((host, port), _cells(clients))
            await crowd.connect()
            crowd.returns = True
        for _ in range(bench.sizes.drains):
            come = crowd.expect(b"QueryUpdated", range(clients))
            async with dev_program(bench, _PROGRAM, "serve", url, port):
                begun = time.perf_counter()
                await come()
                taken.append(time.perf_counter() - begun)
        crowd.close()
    bench.row(spread(f"{clients} clients", taken, " s"))
    return max(taken)


async def over_socket(bench: Bench, store: StoreName) -> float:
    """Mutations over sockets against mutations over HTTP: twenty callers of each, one after another."""
    async with (
        _serving(bench, store, _CALLERS) as (address, _, _),
        _watching(address, _cells(_CALLERS)) as crowd,
    ):
        sockets = [_socket_caller(crowd.sockets[number], number) for number in range(_CALLERS)]
        plain = [await _http_caller(address, number) for number in range(_CALLERS)]
        return await compare(bench, Side("socket", sockets), Side("HTTP", plain))


def _socket_caller(socket: Socket, number: int) -> Callable[[], Awaitable[None]]:
    """What calls a mutation and waits until its client may resolve it: for the transition after the answer."""
    requests = iter(range(1_000_000))
    state: dict[str, Any] = {"answered": False, "done": None}

    def hear(message: bytes) -> None:
        if b'"MutationResponse"' in message:
            if b'"success":true' not in message:
                raise RuntimeError(message)
            state["answered"] = True
        elif state["answered"] and b'"Transition"' in message:
            state["answered"] = False
            state["done"].set_result(None)

    async def call() -> None:
        request = next(requests)
        state["done"] = asyncio.get_running_loop().create_future()
        body = {"requestId": request, "udfPath": "main:put", "args": [{"number": number, "value": "x"}]}
        socket.send(json.dumps({"type": "Mutation", **body}).encode())
        await state["done"]

    socket.heard = hear
    return call


async def _http_caller(address: tuple[str, int], number: int) -> Callable[[], Awaitable[None]]:
    """What calls the same mutation over HTTP, on a connection of its own that it keeps."""
    reader, writer = await asyncio.open_connection(*address)
    body = json.dumps({"path": "main:put", "args": {"number": number, "value": "x"}}).encode()
    request = (
        b"POST /api/mutation HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    )

    async def call() -> None:
        writer.write(request % (len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if b'"success"' not in (answer := await reader.readexactly(length)):
            raise RuntimeError(answer)

    return call


async def refresh(bench: Bench, store: StoreName) -> float:
    """Each client with queries of its user brings a new token; how many queries run."""
    clients = bench.sizes.sockets
    queries = [[("main:own", {"number": number}) for number in range(_QUERIES)] for _ in range(clients)]
    async with _serving(bench, store, _QUERIES, program=_WITH_USERS) as (address, http, process):
        crowd = Crowd(address, queries)
        await crowd.connect()
        await _sign_in(crowd, 0)
        before, spent = await _runs(http), _spent(process)
        bench.row(f"{clients} clients with {_QUERIES} queries", f"{await _sign_in(crowd, 1):.0f} ms")
        bench.report("processor_ms", _spent(process) - spent)
        ran = await _runs(http) - before
        crowd.close()
    return ran


async def _sign_in(crowd: Crowd, version: int) -> float:
    """Send a new token of each client's user; milliseconds until all have the identity's next version."""
    come, messages = crowd.expect(b'"identity":%d' % (version + 1), range(len(crowd.sockets))), []
    for number in crowd.sockets:
        said = {"baseVersion": version, "tokenType": "User", "value": token("ES256", number, age=60 - version)}
        messages.append(json.dumps({"type": "Authenticate", **said}).encode())
    begun = time.perf_counter()
    for socket, message in zip(crowd.sockets.values(), messages, strict=True):
        socket.send(message)
    await come()
    return (time.perf_counter() - begun) * 1000


async def _runs(http: httpx.AsyncClient) -> int:
    found: int = (await http.post("/api/query", json={"path": "main:runs", "args": {}})).json()["value"]
    return found


_STORES: tuple[StoreName, ...] = ("postgres", "sqlite")
BENCHMARKS = (
    *(Benchmark(f"socket_one_query_{store}", partial(one_query, store=store), Bar(at_most=100)) for store in _STORES),
    *(Benchmark(f"socket_own_query_{store}", partial(own_queries, store=store), Bar(at_most=30)) for store in _STORES),
    *(Benchmark(f"socket_all_stale_{store}", partial(all_stale, store=store), Bar(at_most=2)) for store in _STORES),
    *(Benchmark(f"socket_refresh_{store}", partial(refresh, store=store), Bar(at_most=0)) for store in _STORES),
    *(
        Benchmark(f"socket_memory_kb_{store}", partial(socket_memory, store=store), Bar(at_most=60))
        for store in _STORES
    ),
    *(
        Benchmark(f"large_socket_messages_mb_{store}", partial(large_messages, store=store), Bar(at_most=450))
        for store in _STORES
    ),
    *(
        Benchmark(f"large_socket_back_{store}", partial(back_after_restart, store=store), Bar(at_most=3))
        for store in _STORES
    ),
    *(Benchmark(f"socket_mutation_{store}", partial(over_socket, store=store), Bar(at_least=1.2)) for store in _STORES),
)
