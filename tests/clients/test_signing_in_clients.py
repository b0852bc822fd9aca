"""The official clients of Convex sign in, refresh their tokens and sign out."""

from __future__ import annotations

from datetime import timedelta

import pytest
from programs.identities import House, house
from stage.clients import SOCKETS, ClientError, Kind, client
from stage.waits import until

from penstock.clock import SystemClock
from penstock.testing import TestClock

HOUSE = "programs/identities"


def tokens(one: House, subject: str) -> list[str]:
    """Tokens of one user: the first ones are to be refreshed after two seconds."""
    now = one.issuer.clock.now()
    ages = [timedelta(seconds=second) for second in (3, 2, 1)]
    short = [one.issuer.token(subject, iat=now - age, exp=now - age + timedelta(seconds=13)) for age in ages]
    return [*short, one.issuer.token(subject, iat=now, exp=now + timedelta(minutes=10))]


@pytest.mark.parametrize("kind", SOCKETS)
async def test_a_client_signs_in_refreshes_and_signs_out(sqlite_url: str, kind: Kind) -> None:
    async with house(sqlite_url, TestClock(SystemClock().now())) as one, client(kind, one.url) as user:
        await user.subscribe("papers", f"{HOUSE}:papers")
        await user.subscribe("number", f"{HOUSE}:number")
        refused = await user.comes(lambda seen: "error" in seen["papers"])
        assert refused["papers"]["error"]["data"] == {"code": "NotSignedIn", "message": "Sign in to do this."}
        await user.sign(*tokens(one, "ada"))
        await user.shows(papers=[])
        assert await user.mutation(f"{HOUSE}:write", text="x") == "ada"
        await user.shows(papers=["x"])
        if kind != "python":
            assert (await user.signed_in())["isSignedIn"] is True
            runs, states = one.runs, len(user.seen)

            async def refreshed() -> bool:
                return int((await user.signed_in())["fetched"]) >= 3

            await until(refreshed)
            assert await user.mutation(f"{HOUSE}:greet") == "ada"  # by the newest token
            assert one.runs == runs, "a new token of the same user runs nothing"
            one.test.clock.advance(timedelta(minutes=2))
            assert await user.mutation(f"{HOUSE}:write", text="x") == "ada"  # by another token, as these have expired
            await user.shows(papers=["x", "x"])
            assert (await user.signed_in())["isSignedIn"] is True
            shown = {str(seen["papers"]) for seen in user.seen[states:]}
            assert shown <= {str({"value": ["x"] * number}) for number in (1, 2)}, "nor does anything flash"
        await user.sign()
        await user.comes(lambda seen: "error" in seen["papers"])
        await user.sign(*tokens(one, "bob"))
        await user.shows(papers=[])
        assert user.said == []


@pytest.mark.parametrize("kind", ["node", "react"])
async def test_a_client_whose_tokens_are_refused_is_signed_out(sqlite_url: str, kind: Kind) -> None:
    async with house(sqlite_url, TestClock(SystemClock().now())) as one, client(kind, one.url) as user:
        await user.sign(*(one.issuer.token(aud="another", much=number) for number in range(4)))
        await user.subscribe("number", f"{HOUSE}:number")
        await user.shows(number=0)
        assert (await user.signed_in())["isSignedIn"] is False
        assert user.said


async def test_the_http_client_signs_in_and_says_why_not(sqlite_url: str) -> None:
    async with house(sqlite_url, TestClock(SystemClock().now())) as one, client("http", one.url) as user:
        await user.sign(one.issuer.token())
        assert await user.mutation(f"{HOUSE}:write", text="x") == "ada"
        assert await user.consistent_query(f"{HOUSE}:papers") == ["x"]
        await user.sign(one.issuer.token(aud="another"))
        with pytest.raises(ClientError, match=r"NoAuthProvider.*configured providers: OIDC"):
            await user.query(f"{HOUSE}:papers")
