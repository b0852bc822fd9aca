"""HTTP calls beside FastAPI with asyncpg: one process each, on one database, with as many callers at once.

``web_query_N`` reads a row by an index; ``web_mutation_N`` reads it so and changes it, in a serializable transaction
that is tried again after a conflict. Both servers run uvicorn's protocol on uvloop, and log each request into a file,
as they do by default. The callers are another process.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import asyncpg

from benchmarks.footprint import dev_program
from benchmarks.harness import Bar, Bench, Benchmark, Side, compare

_ROWS = 2000
_ADDRESS = re.compile(r"^http://([\d.]+):(\d+)$", re.MULTILINE)
_PROGRAM = """
from penstock import App, Index, MutationCtx, QueryCtx, Table

app = App()


class Account(Table):
    owner: str
    balance: int = 0
    by_owner = Index("owner")


@app.query
async def balance(ctx: QueryCtx, owner: str) -> int:
    row = await ctx.db.query(Account).with_index(Account.by_owner, owner=owner).unique()
    return row.balance if row else 0


@app.mutation
async def add(ctx: MutationCtx, owner: str) -> int:
    row = await ctx.db.query(Account).with_index(Account.by_owner, owner=owner).unique()
    assert row is not None
    await ctx.db.patch(Account, row.id, balance=row.balance + 1)
    return row.balance + 1


@app.mutation
async def fill(ctx: MutationCtx, first: int, count: int) -> None:
    await ctx.db.insert_many([Account(owner=f"o{number}") for number in range(first, first + count)])
"""
_PEER = """
import asyncio, contextlib, sys

import asyncpg
import fastapi
import pydantic
import uvicorn

pool = None


async def keep(connection):
    pass


@contextlib.asynccontextmanager
async def lifespan(app):
    global pool
    pool = await asyncpg.create_pool(sys.argv[1], min_size=10, max_size=10, reset=keep)
    yield


class Owner(pydantic.BaseModel):
    owner: str


app = fastapi.FastAPI(lifespan=lifespan)


@app.post("/query")
async def balance(given: Owner) -> int:
    async with pool.acquire() as connection:
        return await connection.fetchval("select balance from account where owner = $1", given.owner)


@app.post("/mutation")
async def add(given: Owner) -> int:
    async with pool.acquire() as connection:
        while True:
            try:
                async with connection.transaction(isolation="serializable"):
                    row = await connection.fetchrow("select id, balance from account where owner = $1", given.owner)
                    await connection.execute("update account set balance = $2 where id = $1", row[0], row[1] + 1)
                return row[1] + 1
            except asyncpg.SerializationError:
                await asyncio.sleep(0)


class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}", flush=True)


Server(uvicorn.Config(app, port=0, loop="uvloop", http="httptools")).run()
"""


class _Caller:
    """One connection that makes one call after another."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: Callable[[str], bytes]
    ) -> None:
        self._reader, self._writer, self._body = reader, writer, body
        self._random = random.Random(1)

    async def call(self) -> None:
        self._writer.write(self._body(f"o{self._random.randrange(_ROWS)}"))
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        answer = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise AssertionError(head + answer)


@asynccontextmanager
async def _callers(
    address: tuple[str, int], count: int, body: Callable[[str], bytes]
) -> AsyncIterator[list[Callable[[], object]]]:
    async with AsyncExitStack() as stack:
        callers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection(*address)
            stack.callback(writer.close)
            callers.append(_Caller(reader, writer, body).call)
        yield callers  # type: ignore[misc]


def _request(path: str, text: str, address: tuple[str, int]) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address[0]}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
    )
    return f"{head}\r\n\r\n{text}".encode()


@asynccontextmanager
async def _peer(url: str, log: Path) -> AsyncIterator[tuple[str, int]]:
    with log.open("w") as file:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", _PEER, url, stdout=file, stderr=file)
    try:
        while (found := _ADDRESS.search(await asyncio.to_thread(log.read_text))) is None:  # noqa: ASYNC110 - a file is read
            await asyncio.sleep(0.05)
        yield found[1], int(found[2])
    finally:
        process.terminate()
        await process.wait()


async def web(bench: Bench, kind: str, callers: int) -> float:
    """The rate of our server, by that of the other, in turns."""
    function = "balance" if kind == "query" else "add"
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        url = await enter(bench.databases.fresh("postgres"))
        _process, host, port = await enter(dev_program(bench, _PROGRAM, "serve", url))
        ours = (host, port)
        for first in range(0, _ROWS, 500):
            text = f'{{"path": "main:fill", "args": {{"first": {first}, "count": 500}}}}'
            async with _callers(ours, 1, lambda _owner, text=text: _request("/api/mutation", text, ours)) as (fill,):  # type: ignore[misc]
                await fill()  # type: ignore[misc]
        connection = await asyncpg.connect(url)
        await connection.execute("vacuum analyze account")
        await connection.close()
        theirs = await enter(_peer(url, bench.databases.folder / f"peer-{bench.name}.log"))
        mine = lambda owner: _request(  # noqa: E731 - said where it is used
            f"/api/{kind}", f'{{"path": "main:{function}", "args": {{"owner": "{owner}"}}}}', ours
        )
        other = lambda owner: _request(f"/{kind}", f'{{"owner": "{owner}"}}', theirs)  # noqa: E731 - as above
        sides = [
            Side(label, await enter(_callers(address, callers, body)))  # type: ignore[arg-type]
            for label, address, body in (("penstock", ours, mine), ("fastapi", theirs, other))
        ]
        return await compare(bench, *sides, finer=1)


BENCHMARKS = [
    Benchmark(f"web_{kind}_{callers}", partial(web, kind=kind, callers=callers), Bar(at_least=1.0), uvloop=True)
    for kind in ("query", "mutation")
    for callers in (1, 16, 64)
]
