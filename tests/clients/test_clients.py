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
from programs import tally
from stage.clients import SOCKETS, ClientError, Kind, client, serving
from stage.sockets import Wire

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
        await one.subscribe("lines", "programs/tally:lines")
        await one.shows(lines=[])
        assert await one.mutation("programs/tally:write", text="by itself") == 1
        await one.shows(lines=["by itself"])
        await other.run_mutation(tally.write, text="by Python")
        await one.shows(lines=["by Python", "by itself"])
        await http.mutation("programs/tally:write", text="over HTTP")
        await one.shows(lines=["by Python", "by itself", "over HTTP"])
        run_plain_sql(database_url, "update line set text = 'by SQL' where text = 'over HTTP'")
        await one.shows(lines=["by Python", "by SQL", "by itself"])
        run_plain_sql(database_url, "delete from line")
        await one.shows(lines=[])
        await one.unsubscribe("lines")
        await one.subscribe("count", "programs/tally:count", text="x")
        await one.shows(count=0)
        before = await http.action("programs/tally:runs_of_lines")
        for number in range(1, 5):  # a mutation resolves when its client shows what it did
            if kind == "python":
                assert await one.mutation("programs/tally:write", text="x") == number
                assert (
                    await one.query("programs/tally:count", text="x") == number
                )  # of the subscription: it asks nobody
            else:
                found, seen = await one.mutation_and_look("programs/tally:write", text="x")
                assert (found, seen["count"]) == (number, {"value": number})
        assert await http.action("programs/tally:runs_of_lines") == before, "nobody watches it any more"
        assert one.said == []


@pytest.mark.parametrize("kind", KINDS)
async def test_errors_and_values_that_json_does_not_have_reach_clients(database_url: str, kind: Kind) -> None:
    async with serving(database_url) as server, client(kind, server.url) as one:
        with pytest.raises(ClientError) as refused:
            await one.mutation("programs/tally:refuse")
        assert refused.value.data == {"kind": "refused", "raw": {"$bytes": "AP8="}}
        with pytest.raises(ClientError, match="Server Error") as broken:
            await one.mutation("programs/tally:break_down")
        assert broken.value.data is None
        assert "a secret" not in str(broken.value)
        assert await one.query("programs/tally:lines") == []
        given: dict[str, Any] = {"large": LARGE, "raw": {"$bytes": "AP8="}, "real": NOTHING}
        found = await one.query("programs/tally:kinds", **given)
        assert found == {**given, "least": LEAST, "bytes": {"$bytes": b64encode(bytes(range(256))).decode()}}
        plain: list[Any] = [None, True, 0.5, -1e300, "☃\0", [], [[{}]], {"a": {"b": [1.5]}}]
        plain += [{"$bytes": "AP8="}, [LARGE, {"a": {"$bytes": ""}, "b": LEAST, "c": "AP8="}], {"@bytes": "AP8"}]
        for value in plain:
            assert await one.query("programs/tally:same", value=value) == value
        if kind == "http":
            return
        await one.subscribe("guarded", "programs/tally:guarded", most=0)
        await one.subscribe("lines", "programs/tally:lines")
        await one.shows(guarded=0, lines=[])
        await one.mutation("programs/tally:write", text="a")
        seen = await one.comes(lambda seen: "error" in seen["guarded"])
        assert seen["guarded"]["error"]["data"] == {"kind": "too many", "found": 1}
        assert seen["lines"] == {"value": ["a"]}
        run_plain_sql(database_url, "delete from line")
        await one.shows(guarded=0, lines=[])


async def test_an_optimistic_update_does_not_flicker(database_url: str) -> None:
    async with serving(database_url) as server, Wire(server.port).running() as wire, client("react", wire.url) as one:
        await one.subscribe("lines", "programs/tally:lines")
        await one.shows(lines=[])
        wire.flowing.clear()
        writes = [
            asyncio.ensure_future(one.mutation("programs/tally:write", "programs/tally:lines", text=text))
            for text in "abc"
        ]
        await one.shows(lines=["a", "b", "c"])
        assert not any(write.done() for write in writes)
        wire.flowing.set()
        await asyncio.gather(*writes)
        shows = [seen["lines"]["value"] for seen in one.seen]
        assert all(earlier <= later for earlier, later in itertools.pairwise(shows)), shows
        assert shows[-1] == ["a", "b", "c"]
