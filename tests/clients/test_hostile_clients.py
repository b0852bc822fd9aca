"""The official clients of Convex with arguments that nobody can take: the call fails, and the client goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from programs.identities import house
from stage.clients import SOCKETS, ClientError, Kind, client, serving
from stage.needs import LONG

from penstock.clock import SystemClock
from penstock.testing import TestClock

HOUSE = "programs/identities"


def nested(levels: int) -> list[Any]:
    """Lists in lists."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize("kind", SOCKETS)
async def test_one_call_that_cannot_be_taken_fails_and_the_page_goes_on(database_url: str, kind: Kind) -> None:
    async with serving(database_url) as server, client(kind, server.url) as one:
        await one.subscribe("count", "programs/tally:count", text="good")
        deep = nested(100 if kind == "python" else 300)  # at 300 it sends nothing, and stands still
        values: tuple[Any, ...] = "I \ud83d", deep, [[]] * 40_000, "x" * 5_000_000, "x" * 40_000_000
        for number, value in enumerate(values if LONG else values[:-1]):
            with pytest.raises(ClientError):
                await one.mutation("programs/tally:write", None, text=value)
            with pytest.raises(ClientError):
                await one.action("programs/tally:write_from_outside", text=value)
            with pytest.raises(ClientError):
                await one.query("programs/tally:same", value=value)
            assert await one.mutation("programs/tally:write", text="good") == number + 1
            await one.shows(count=number + 1)
        assert not [line for line in one.said if "WebSocket" in line or "uncaught" in line]


@pytest.mark.parametrize("kind", SOCKETS)
async def test_a_client_with_many_large_queries_comes_back(database_url: str, kind: Kind) -> None:
    async with serving(database_url) as server, client(kind, server.url) as one:
        shown = {f"q{number}": f"{number}" + "x" * 200_000 for number in range(25)} | {"q7": "7"}
        for name, text in shown.items():
            await one.subscribe(name, "programs/tally:count", text=text)
        await one.shows(**dict.fromkeys(shown, 0))
        await server.kill()
        await server.start()
        assert await one.mutation("programs/tally:write", text="7") == 1
        await one.shows(**{**dict.fromkeys(shown, 0), "q7": 1})


async def test_the_python_client_says_that_its_token_has_expired_and_takes_another(sqlite_url: str) -> None:
    clock = TestClock(SystemClock().now())
    async with house(sqlite_url, clock) as one, client("python", one.url) as user:
        for step in range(2):
            now = clock.now()
            await user.sign(one.issuer.token("ada", iat=now, exp=now + timedelta(minutes=1)))
            if not step:
                await user.subscribe("papers", f"{HOUSE}:papers")
            await user.shows(papers=["x"] * step)
            assert await user.mutation(f"{HOUSE}:write", text="x") == "ada"
            await user.shows(papers=["x"] * (step + 1))
            clock.advance(timedelta(minutes=2))
            with pytest.raises(ClientError, match="expired"):
                await user.mutation(f"{HOUSE}:write", text="y")
            with pytest.raises(ClientError, match="expired"):
                await user.query(f"{HOUSE}:papers", loud=True)
            await user.comes(lambda seen: "expired" in str(seen["papers"]))
        await user.sign("no.token.either")
        with pytest.raises(ClientError, match="Unauthenticated"):
            await user.mutation(f"{HOUSE}:write", text="y")
        await user.sign()
        with pytest.raises(ClientError, match="Sign in"):
            await user.mutation(f"{HOUSE}:write", text="y")
