"""Clients of several servers, which are killed: nobody sees two states mixed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import httpx
import pytest
from programs.tally import WHOLE
from stage.clients import Server, serving
from stage.sockets import SocketClient, socket_client
from stage.waits import SOON
from websockets.exceptions import InvalidMessage, WebSocketException

from penstock.clock import Random, SystemClock, random_of
from penstock.wire.tags import read_u64, u64_text

SERVERS = 3
LEFT, RIGHT, OWN = 0, 1, 2
CLOCK = SystemClock()
_LOST = (OSError, EOFError, WebSocketException, InvalidMessage)


class Player:
    """A client that comes back, to any server, and sends again what it has no response to.

    One of JavaScript keeps its session. Others say the last time that they saw.
    """

    def __init__(self, name: str, servers: list[Server], chance: Random, *, lasting: bool) -> None:
        self.name = name
        self.returns = -1
        self._servers = servers
        self._chance = chance
        self._lasting = lasting
        self._seen = 0
        self.goes_on = True
        self.written = 0
        self._waits = False  # for a response
        self._shown = 0

    async def play(self) -> None:
        """Write lines one after another until told to stop, and check all that is shown meanwhile."""
        while self.goes_on or self._waits:
            server = self._chance.choice(self._servers)
            options = {} if self._lasting else {"client": "python-0.8.1", "path": "/api/sync"}
            try:
                async with asyncio.timeout(SOON), socket_client(server.url, "programs.tally", **options) as client:
                    self.returns += 1
                    await self._play(client)
            except _LOST:
                await CLOCK.sleep(0.05)

    async def _play(self, client: SocketClient) -> None:
        seen = u64_text(self._seen) if self._seen else None
        await client.connect(self.name if self._lasting else None, self.returns, seen)
        queries = [client.added(LEFT, "left"), client.added(RIGHT, "right"), client.added(OWN, "count", text=self.name)]
        await client.modify(queries)
        if not self._lasting and not self._seen:
            await self._receive(client)  # until then it has no number by which it is known again
        while self.goes_on or self._waits:
            if self._chance.random() < 0.3:
                amount = self._chance.randint(-5, 5)
                await client.call("Mutation", "move", 1000 + self.written, amount=amount)
            self._waits = True
            await client.call("Mutation", "write", self.written, text=self.name)
            while (message := await self._receive(client)).get("requestId") != self.written:
                pass
            assert message["success"], message
            self.written, self._waits = self.written + 1, False
            while (message := await self._receive(client))["type"] != "Transition":
                pass
            assert self._shown >= self.written, "what it wrote is shown by the next transition"

    async def _receive(self, client: SocketClient) -> dict[str, object]:
        message = await client.receive()
        if message["type"] == "Transition":
            seen = read_u64(client.version["ts"])
            assert seen >= self._seen, "time goes on"
            self._seen = seen
            if client.answers:
                assert client.answers[LEFT] + client.answers[RIGHT] == WHOLE, "both are of one snapshot"
                assert client.answers[OWN] >= self._shown, "no server shows less than another one did"
                self._shown = client.answers[OWN]
        return message


async def play(servers: list[Server], players: list[Player], storm: Callable[[], Awaitable[None]]) -> None:
    """Let players play during a storm; each write that they had a response for took effect once."""
    async with httpx.AsyncClient(base_url=servers[0].url, timeout=SOON) as http:
        assert (await http.post("/api/mutation", json={"path": "programs.tally:fill"})).json()["status"] == "success"
    async with asyncio.TaskGroup() as games:
        for player in players:
            games.create_task(player.play())
        await storm()
        for player in players:
            player.goes_on = False
    assert all(player.written for player in players)
    async with httpx.AsyncClient(base_url=servers[0].url, timeout=SOON) as http:
        for player in players:
            body = {"path": "programs.tally:count", "args": {"text": player.name}}
            assert (await http.post("/api/query", json=body)).json()["value"] == player.written


def players_of(servers: list[Server], chance: Random) -> list[Player]:
    names = [f"6a0e8a52-0000-4000-8000-00000000000{number}" for number in range(6)]
    return [
        Player(name, servers, random_of(chance.getrandbits(32)), lasting=place % 2 == 0)
        for place, name in enumerate(names)
    ]


@pytest.mark.parametrize("seed", [1, 2])
async def test_clients_see_whole_states_while_servers_are_killed(database_url: str, seed: int) -> None:
    chance = random_of(seed)

    async def kill_each() -> None:
        for server in servers:
            await CLOCK.sleep(chance.random() * 0.3)  # chance chooses the moment; nothing waits for it
            await server.kill()
            await server.start()

    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(database_url)) for _ in range(SERVERS)]
        players = players_of(servers, chance)
        await play(servers, players, kill_each)
        assert all(player.returns for player in players)
