"""The official clients of Convex on a penstock server, as users run them: values, writes, errors, one snapshot."""

from __future__ import annotations

import asyncio
import itertools
import math
import sqlite3
import struct
from base64 import b64encode
from typing import Any

import psycopg
import pytest
from stage import tally
from stage.clients import SOCKETS, Client, ClientError, Kind, client, serving
from stage.wire import Wire

from penstock.store.open import sqlite_path

KINDS: tuple[Kind, ...] = (*SOCKETS, "http")
NOTHING = {"$float": b64encode(struct.pack("<d", math.nan)).decode()}
LARGE = {"$integer": b64encode((2**60).to_bytes(8, "little")).decode()}
LEAST = {"$integer": b64encode((-(2**63)).to_bytes(8, "little", signed=True)).decode()}


def run_plain_sql(url: str, statement: str) -> None:
    """Run a statement as a program that knows nothing of penstock."""
    if url.startswith("sqlite"):
        with sqlite3.connect(sqlite_path(url)) as file:
            file.execute(statement)
        file.close()
        return
    with psycopg.connect(url) as connection:
        connection.execute(statement)


@pytest.mark.parametrize("kind", SOCKETS)
async def test_who_writes_does_not_matter_every_client_has_it(database_url: str, kind: Kind) -> None:
    async with (
        serving(database_url) as server,
        client(kind, server.url) as one,
        client("http", server.url) as http,
        tally.app.open(database_url) as other,
    ):
        await one.subscribe("lines", "stage/tally:lines")
        await one.shows(lines=[])
        assert await one.mutation("stage/tally:write", text="by itself") == 1
        await one.shows(lines=["by itself"])
        await other.run_mutation(tally.write, text="by Python")
        await one.shows(lines=["by Python", "by itself"])
        await http.mutation("stage/tally:write", text="over HTTP")
        await one.shows(lines=["by Python", "by itself", "over HTTP"])
        run_plain_sql(database_url, "update line set text = 'by SQL' where text = 'over HTTP'")
        await one.shows(lines=["by Python", "by SQL", "by itself"])
        assert await one.action("stage/tally:write_from_outside", text="by an action") == 1
        await one.shows(lines=["by Python", "by SQL", "by an action", "by itself"])
        run_plain_sql(database_url, "delete from line")
        await one.shows(lines=[])
        assert one.said == []


@pytest.mark.parametrize("kind", SOCKETS)
async def test_a_query_that_is_watched_no_more_is_not_run(database_url: str, kind: Kind) -> None:
    async with serving(database_url) as server, client(kind, server.url) as one, client("http", server.url) as http:
        await one.subscribe("lines", "stage/tally:lines")
        await one.subscribe("count", "stage/tally:count", text="x")
        await one.shows(lines=[], count=0)
        await one.unsubscribe("lines")
        before = await http.action("stage/tally:runs_of_lines")
        await one.mutation("stage/tally:write", text="x")
        await one.shows(count=1)
        assert await http.action("stage/tally:runs_of_lines") == before
        assert await one.query("stage/tally:lines") == ["x"]
        await one.subscribe("lines", "stage/tally:lines")
        await one.shows(lines=["x"], count=1)


@pytest.mark.parametrize("kind", ["node", "react"])
async def test_a_mutation_resolves_when_its_client_shows_what_it_did(database_url: str, kind: Kind) -> None:
    async with serving(database_url) as server, client(kind, server.url) as one:
        await one.subscribe("count", "stage/tally:count", text="x")
        await one.shows(count=0)
        for number in range(1, 21):
            found, seen = await one.mutation_and_look("stage/tally:write", text="x")
            assert (found, seen["count"]) == (number, {"value": number})


async def test_a_mutation_of_python_resolves_when_its_client_shows_what_it_did(database_url: str) -> None:
    async with serving(database_url) as server, client("python", server.url) as one:
        await one.subscribe("count", "stage/tally:count", text="x")
        for number in range(1, 21):
            assert await one.mutation("stage/tally:write", text="x") == number
            assert await one.query("stage/tally:count", text="x") == number  # of the subscription: it asks nobody


@pytest.mark.parametrize("kind", SOCKETS)
async def test_two_queries_of_one_client_never_disagree(database_url: str, kind: Kind) -> None:
    async with serving(database_url) as server, client(kind, server.url) as one, client("http", server.url) as http:
        await http.mutation("stage/tally:fill")
        await one.subscribe("left", "stage/tally:left")
        await one.subscribe("right", "stage/tally:right")
        await one.shows(left=tally.WHOLE, right=0)
        async with tally.app.open(database_url) as other:

            async def move(amount: int) -> None:
                for _ in range(40):
                    await other.run_mutation(tally.move, amount=amount)

            async def move_here() -> None:
                for _ in range(20):
                    await one.mutation("stage/tally:move", amount=2)

            await asyncio.gather(move(1), move(3), move(-4), move_here())
        await one.shows(left=tally.WHOLE - 40, right=40)
        states = {(seen["left"]["value"], seen["right"]["value"]) for seen in one.seen if len(seen) > 1}
        assert len(states) > 10
        assert {left + right for left, right in states} == {tally.WHOLE}


@pytest.mark.parametrize("kind", KINDS)
async def test_errors_reach_clients_with_their_data(database_url: str, kind: Kind) -> None:
    async with serving(database_url) as server, client(kind, server.url) as one:
        with pytest.raises(ClientError) as refused:
            await one.mutation("stage/tally:refuse")
        assert refused.value.data == {"kind": "refused", "raw": {"$bytes": "AP8="}}
        with pytest.raises(ClientError, match="Server Error") as broken:
            await one.mutation("stage/tally:break_down")
        assert broken.value.data is None
        assert "a secret" not in str(broken.value)
        for path in ("stage/tally:nothing", "stage/tally:write"):
            with pytest.raises(ClientError):
                await one.mutation(path, unknown=1)
        assert await one.query("stage/tally:lines") == []


@pytest.mark.parametrize("kind", SOCKETS)
async def test_a_query_that_fails_fails_for_who_watches_it_until_it_succeeds(database_url: str, kind: Kind) -> None:
    async with serving(database_url) as server, client(kind, server.url) as one:
        await one.subscribe("guarded", "stage/tally:guarded", most=0)
        await one.subscribe("lines", "stage/tally:lines")
        await one.shows(guarded=0, lines=[])
        await one.mutation("stage/tally:write", text="a")
        seen = await one.comes(lambda seen: "error" in seen["guarded"])
        assert seen["guarded"]["error"]["data"] == {"kind": "too many", "found": 1}
        assert seen["lines"] == {"value": ["a"]}
        run_plain_sql(database_url, "delete from line")
        await one.shows(guarded=0, lines=[])


@pytest.mark.parametrize("kind", KINDS)
async def test_values_that_json_does_not_have(database_url: str, kind: Kind) -> None:
    async with serving(database_url) as server, client(kind, server.url) as one:
        given: dict[str, Any] = {"large": LARGE, "raw": {"$bytes": "AP8="}, "real": NOTHING}
        found = await one.query("stage/tally:kinds", **given)
        assert found == {**given, "least": LEAST, "bytes": {"$bytes": b64encode(bytes(range(256))).decode()}}
        plain: list[Any] = [None, True, 0.5, -1e300, "☃\0", [], [[{}]], {"a": {"b": [1.5]}}]
        for value in plain:
            assert await one.query("stage/tally:same", value=value) == value


async def test_an_optimistic_update_does_not_flicker(database_url: str) -> None:
    async with serving(database_url) as server, Wire(server.port).running() as wire, client("react", wire.url) as one:
        await one.subscribe("lines", "stage/tally:lines")
        await one.shows(lines=[])
        wire.flowing.clear()
        writes = [
            asyncio.ensure_future(one.mutation("stage/tally:write", "stage/tally:lines", text=text)) for text in "abc"
        ]
        await one.shows(lines=["a", "b", "c"])
        assert not any(write.done() for write in writes)
        wire.flowing.set()
        await asyncio.gather(*writes)
        shows = [seen["lines"]["value"] for seen in one.seen]
        assert all(earlier <= later for earlier, later in itertools.pairwise(shows)), shows
        assert shows[-1] == ["a", "b", "c"]


async def test_http_has_one_snapshot_for_queries_that_ask_for_it(database_url: str) -> None:
    async with serving(database_url) as server, client("http", server.url) as http:
        await http.mutation("stage/tally:write", text="a")
        assert await http.consistent_query("stage/tally:lines") == ["a"]


async def test_an_equal_answer_is_not_sent(database_url: str) -> None:
    async with serving(database_url) as server, Wire(server.port).running() as wire, client("node", wire.url) as one:
        await one.subscribe("lines", "stage/tally:lines")
        await one.subscribe("count", "stage/tally:count", text="x")
        await one.shows(lines=[], count=0)
        for number in range(1, 6):
            await one.mutation("stage/tally:write", text="y")
            await one.shows(lines=["y"] * number, count=0)
        changed = [
            change["queryId"]
            for passed in wire.passed
            if passed.side == "server" and passed.type == "Transition"
            for change in passed.body["modifications"]
        ]
        assert sorted(changed) == [0] * 6 + [1]


async def _all_show(clients: list[Client], **values: Any) -> None:
    await asyncio.gather(*(one.shows(**values) for one in clients))


async def test_clients_of_all_kinds_on_two_servers_see_the_same(database_url: str) -> None:
    async with (
        serving(database_url) as first,
        serving(database_url) as second,
        client("node", first.url) as node,
        client("react", second.url) as react,
        client("python", first.url) as python,
    ):
        clients = [node, react, python]
        for one in clients:
            await one.subscribe("lines", "stage/tally:lines")
        await _all_show(clients, lines=[])
        for number, one in enumerate(clients, 1):
            await one.mutation("stage/tally:write", text="x")
            await _all_show(clients, lines=["x"] * number)
