"""The official clients on bad networks, and while servers and databases go away: each mutation once, nothing unseen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest
from programs import tally
from stage.clients import SOCKETS, Client, ClientError, Kind, Server, client, serving
from stage.sockets import Side, Wire

Place = tuple[Side, Literal["Mutation", "MutationResponse", "Transition"], bool]
PLACES: list[Place] = [
    ("client", "Mutation", False),  # the server never has it
    ("client", "Mutation", True),  # it has the first half
    ("server", "MutationResponse", False),  # it is committed, and the client does not know
    ("server", "MutationResponse", True),
    ("server", "Transition", False),  # the client knows, and has not seen it
    ("server", "Transition", True),
]


async def watch_all(one: Client) -> None:
    await one.subscribe("lines", "programs/tally:lines")
    await one.subscribe("count", "programs/tally:count", text="x")


@asynccontextmanager
async def watching(url: str, kind: Kind) -> AsyncIterator[tuple[Server, Wire, Client]]:
    """A client that watches over a wire, where there are no lines yet."""
    async with serving(url) as server, Wire(server.port).running() as wire, client(kind, wire.url) as one:
        await watch_all(one)
        await one.shows(lines=[], count=0)
        yield server, wire, one


@pytest.mark.parametrize("kind", SOCKETS)
async def test_a_mutation_takes_effect_once_wherever_its_connection_is_lost(database_url: str, kind: Kind) -> None:
    async with watching(database_url, kind) as (_, wire, one):
        for number, place in enumerate(PLACES, 1):
            side, message, half = place
            wire.cut_at(side, message, half=half)
            assert await one.mutation("programs/tally:write", text="x") == number, place
            await one.shows(lines=["x"] * number, count=number)
            assert wire.has_cut, place
        assert await one.query("programs/tally:count", text="x") == len(PLACES)
        assert one.said == []


@pytest.mark.parametrize("kind", SOCKETS)
async def test_an_action_whose_connection_is_lost_fails_in_javascript_and_runs_again_in_python(
    sqlite_url: str, kind: Kind
) -> None:
    async with watching(sqlite_url, kind) as (_, wire, one):
        wire.cut_at("server", "ActionResponse")
        action = one.action("programs/tally:write_from_outside", text="x")
        if kind == "python":
            assert await action == 2, "it ran before"
        else:
            with pytest.raises(ClientError, match="Connection lost while action was in flight"):
                await action
        count = 1 + (kind == "python")
        await one.shows(lines=["x"] * count, count=count)
        assert [one.connection for one in wire.passed if one.type == "Action"] == [1, 2][:count]
        assert one.said == []


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("kind", SOCKETS)
async def test_a_server_that_comes_back_has_its_clients_back(
    database_url: str, kind: Kind, how: Literal["stop", "kill"]
) -> None:
    async with watching(database_url, kind) as (server, _, one):
        await one.mutation("programs/tally:write", text="x")
        await one.shows(lines=["x"], count=1)
        await (server.stop() if how == "stop" else server.kill())
        write = asyncio.ensure_future(one.mutation("programs/tally:write", text="x"))
        async with tally.app.open(database_url) as other:
            await other.run_mutation(tally.write, text="y")
        await server.start()
        try:
            await write
        except ClientError as error:  # the client may forget who has asked, and sends it all the same
            assert (kind, str(error)) == ("python", "channel closed")  # noqa: PT017 - it need not fail
        await one.shows(lines=["x", "x", "y"], count=2)
        assert one.said == []
