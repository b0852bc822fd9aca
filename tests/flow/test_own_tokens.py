"""Tokens that a program signs itself: all can verify them, it verifies them without a network, and keys rotate."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import jwt
import pytest
from cryptography.fernet import Fernet
from stage.stories import tell_in
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock import (
    ActionCtx,
    App,
    ConfigError,
    FernetCodec,
    MutationCtx,
    OwnJWT,
    Unauthenticated,
    ValueInvalid,
    public,
    signed_in,
    sync,
)
from penstock.store.session import Statement, reading
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores
URL = "https://shop.example"
HOUR = timedelta(hours=1)

app = App(auth=[OwnJWT(application_id="shop")], public_url=URL)
write, _, act = tell_in(app)


@app.query(access=signed_in)
async def who(ctx: Any) -> str:
    return str((await ctx.auth.require()).token_identifier)


@app.mutation(access=public)
def sign_in(ctx: sync.MutationCtx, name: str) -> str:
    return ctx.auth.sign_jwt({"sub": name, "aud": "shop", "nested": {"a": [1, None]}})


async def signed(test: TestApp, expires_in: timedelta = HOUR, **claims: Any) -> str:
    said = {"sub": "ada", "aud": "shop", **claims}
    token: str = await test.run_action(act, lambda ctx: ctx.auth.sign_jwt(said, expires_in=expires_in))
    return token


def kid_of(token: str) -> str:
    return str(jwt.get_unverified_header(token)["kid"])


async def keys_of(test: TestApp) -> dict[str, Any]:
    answer = await test.http.get("/.well-known/jwks.json")
    assert answer.status_code == 200
    return {key["kid"]: key for key in answer.json()["keys"]}


async def test_a_signed_token_signs_in_here_and_everybody_verifies_it(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        assert await keys_of(test) == {}
        token = await test.run_mutation(sign_in, "ada")
        later = await signed(test)
        assert kid_of(token) == kid_of(later)
        asked = {"path": f"{who.name}", "args": {}, "format": "json"}
        answer = await test.http.post("/api/query", json=asked, headers={"authorization": f"Bearer {token}"})
        assert answer.json()["value"] == f"{URL}|ada"
        found = (await test.http.get("/.well-known/openid-configuration")).json()
        assert (found["issuer"], found["jwks_uri"]) == (URL, f"{URL}/.well-known/jwks.json")
        (key,) = (await keys_of(test)).values()
        assert {*key} == {"kty", "crv", "x", "y", "kid", "alg", "use"}, "nothing of the private key"
        claims = jwt.decode(
            token, jwt.PyJWK(key), ["ES256"], audience="shop", options={"verify_exp": False, "verify_iat": False}
        )
        assert (claims["sub"], claims["iss"], claims["nested"]) == ("ada", URL, {"a": [1, None]})
        assert claims["exp"] - claims["iat"] == 15 * 60
        assert claims["iat"] == int(test.clock.now().timestamp())
        test.clock.advance(timedelta(minutes=15, seconds=6))
        with pytest.raises(Unauthenticated, match="expired"):
            await test.tokens.verify(token)


async def test_forged_and_foreign_tokens_are_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        token = await signed(test)
        (key,) = (await keys_of(test)).values()
        claims = jwt.decode(token, options={"verify_signature": False})
        text = base64.urlsafe_b64decode(token.split(".")[1] + "==").replace(b"ada", b"eve")
        body = base64.urlsafe_b64encode(text).decode().rstrip("=")
        forged = [
            ".".join([token.split(".")[0], body, token.split(".")[2]]),
            jwt.encode(claims, "x" * 32, "HS256", {"kid": key["kid"]}),
            jwt.encode(claims, "", "none", {"kid": key["kid"]}),
            jwt.encode(claims, key["x"] + key["y"], "HS256", {"kid": key["kid"]}),
            jwt.encode(claims, "x" * 32, "HS256", {"kid": "0" * 32}),
            await signed(test, aud="another"),
            await signed(test, sub=" "),
        ]
        for wrong in forged:
            with pytest.raises(Unauthenticated):
                await test.tokens.verify(wrong)
        assert (await test.tokens.verify(token)).identity.subject == "ada"


async def test_keys_rotate_and_all_processes_know(database_url: str) -> None:
    async with TestApp(app, database_url) as test, TestApp(app, database_url) as other:
        first = await signed(test)
        assert kid_of(await signed(other)) == kid_of(first)
        signing = test.engine.signing

        async def rotate(*, at_once: bool = False) -> None:
            await test.runner.write(lambda transaction: signing.rotate(transaction, at_once=at_once))

        await rotate()
        second = await signed(test)
        assert kid_of(second) != kid_of(first)
        for token in (first, second):
            assert (await other.tokens.verify(token)).identity.subject == "ada"
        assert [*await keys_of(test)] == [kid_of(second), kid_of(first)]
        test.clock.advance(timedelta(minutes=59))
        late = await signed(other)
        assert kid_of(late) == kid_of(second), "it has read the keys again"
        test.clock.advance(timedelta(minutes=61))
        assert [*await keys_of(test)] == [kid_of(second)]
        await rotate()
        assert len(await test.engine.store.signing_keys.list()) == 2, "the first one is forgotten"
        third = await signed(test)
        for one in (test, other):
            assert (await one.tokens.verify(third)).identity.subject == "ada", "both know it well"
        await rotate(at_once=True)
        test.clock.advance(timedelta(minutes=1, seconds=1))
        for one in (test, other):
            with pytest.raises(Unauthenticated, match="has no key"):
                await one.tokens.verify(third)
            assert (await one.tokens.verify(await signed(one))).identity.subject == "ada"


async def test_a_key_of_a_transaction_that_is_rolled_back_signs_nothing(database_url: str) -> None:
    leaked: list[str] = []

    async def fail(ctx: MutationCtx) -> None:
        leaked.append(await ctx.auth.sign_jwt({"sub": "ada", "aud": "shop"}))
        raise ValueError("no")

    async with TestApp(app, database_url) as test:
        with pytest.raises(ValueError, match="no"):
            await test.run_mutation(write, fail)
        with pytest.raises(Unauthenticated):
            await test.tokens.verify(leaked[0])
        token = await test.run_mutation(sign_in, "ada")
        assert kid_of(token) != kid_of(leaked[0])
        assert (await test.tokens.verify(token)).identity.subject == "ada"


async def test_what_cannot_be_signed_is_refused(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        wrong: list[tuple[Any, timedelta]] = [
            ({"iss": "x"}, HOUR), ({"exp": 1}, HOUR), ({"nbf": 1}, HOUR), ({"iat": 1}, HOUR), ({1: 2}, HOUR),
            ({"a": float("nan")}, HOUR), ({"a": {1, 2}}, HOUR), ({"a": "x" * 5000}, HOUR), ("sub", HOUR), (None, HOUR),
            ({}, timedelta(0)), ({}, -HOUR), ({}, HOUR * 2),
        ]  # fmt: skip
        for claims, expires_in in wrong:
            with pytest.raises(ValueInvalid):
                await test.run_action(
                    act, lambda ctx, claims=claims, end=expires_in: ctx.auth.sign_jwt(claims, expires_in=end)
                )
        assert await test.engine.store.signing_keys.list() == []
    async with TestApp(app, database_url, public_url="") as test:
        with pytest.raises(ConfigError, match="public_url"):
            await signed(test)
        assert (await test.http.get("/.well-known/openid-configuration")).status_code == 404


async def test_the_private_key_is_encrypted_by_the_codec(database_url: str) -> None:
    hidden = App(codec=FernetCodec(Fernet.generate_key().decode()), public_url=URL, auth=[OwnJWT()])
    _, _, act_hidden = tell_in(hidden)
    async with TestApp(hidden, database_url) as test:
        token = await test.run_action(act_hidden, lambda ctx: ctx.auth.sign_jwt({"sub": "ada"}))
        assert (await test.tokens.verify(token)).identity.subject == "ada"
        store = test.engine.store
        async with reading(store.begin_read) as session:
            ((secret,),) = await session.fetch(
                Statement(store.dialect.translate("select secret from penstock.signing_key"))
            )
        assert "PRIVATE" not in secret
        assert "PRIVATE" not in repr(await store.signing_keys.list())


async def test_a_program_may_answer_for_its_keys_itself(database_url: str) -> None:
    own = App()

    @own.http("GET", "/.well-known/jwks.json", access=public)
    async def keys(ctx: ActionCtx, request: Request) -> Response:
        return JSONResponse({"keys": "of its own"})

    async with TestApp(own, database_url) as test:
        assert (await test.http.get("/.well-known/jwks.json")).json() == {"keys": "of its own"}
