"""Tokens: only those of a configured provider, for this application and in their time, say who calls."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from programs.identities import Provider, private_key, provider, public_jwk

from penstock import OIDC, App, CustomJWT, DeclarationError, ProviderUnavailable, Unauthenticated
from penstock.api.identity import keys as keys_module
from penstock.identity.api_key import PREFIX, hash_of
from penstock.identity.claims import identity_of
from penstock.testing import TestApp, TestClock

SECOND = timedelta(seconds=1)
KEYS = "/keys"


@asynccontextmanager
async def signed_in(database: str | None = None) -> AsyncIterator[tuple[TestApp, Provider]]:
    """An app, and its provider."""
    clock = TestClock()
    with provider(clock) as issuer:
        app = App(auth=[OIDC(issuer.url + "/", "shop"), OIDC("https://other.example", "shop")])
        async with TestApp(app, database, clock=clock) as test:
            yield test, issuer


async def refusal(test: TestApp, token: str) -> str:
    with pytest.raises(Unauthenticated) as refused:
        await test.tokens.verify(token)
    return str(refused.value)


def unsigned(header: dict[str, Any], claims: Any) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in (header, claims)]
    return ".".join([*parts, ""])


def public_pem(kid: str) -> Any:
    return private_key("ES256", kid).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


async def test_a_token_of_each_algorithm_says_who_calls() -> None:
    async with signed_in() as (test, issuer):
        issuer.keys = [
            {"kty": "nonsense"},
            public_jwk("RS256", "r", alg="RS256"),
            public_jwk("ES256", "e"),
            public_jwk("EdDSA", "d"),
        ]
        for algorithm, key in (("RS256", "r"), ("ES256", "e"), ("EdDSA", "d")):
            token = issuer.token(key=key, algorithm=algorithm, email="a@b.c", email_verified="true", aud=["x", "shop"])
            identity = (await test.tokens.verify(token)).identity
            assert (identity.subject, identity.email, identity.email_verified) == ("ada", "a@b.c", True)
            assert identity.token_identifier == f"{issuer.url}|ada"
        assert issuer.asked[KEYS] == 1


async def test_forged_and_foreign_tokens_are_refused() -> None:
    async with signed_in() as (test, issuer):
        public = public_pem("first")
        good = jwt.decode(issuer.token(), options={"verify_signature": False})
        assert "The specified alg value is not allowed" in await refusal(
            test, unsigned({"alg": "none", "kid": "first"}, good)
        )
        header = {"alg": "HS256", "kid": "first", "typ": "JWT"}
        body = unsigned(header, good)[:-1].encode()
        signature = hmac.digest(public, body, "sha256")
        confused = f"{body.decode()}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
        assert "alg value is not allowed" in await refusal(test, confused)
        forged = jwt.encode(good, private_key("ES256", "mine"), "ES256", headers={"kid": "first"})
        assert "Signature verification failed" in await refusal(test, forged)
        embedded = {"kid": "first", "jwk": public_jwk("ES256", "mine"), "jku": "http://127.0.0.1:1/keys"}
        assert "Signature" in await refusal(test, jwt.encode(good, private_key("ES256", "mine"), "ES256", embedded))
        symmetric = {"kty": "oct", "k": "c2VjcmV0", "kid": "first"}
        issuer.keys = [symmetric, public_jwk("ES256", "encrypts", use="enc"), public_jwk("ES256", "second")]
        test.clock.advance(31 * SECOND)
        assert "has no key 'encrypts'" in await refusal(test, issuer.token(key="encrypts"))

        for wrong, said in {
            issuer.token(aud="another"): "for 'another'",
            issuer.token(aud=None): "configured providers: OIDC(domain=",
            issuer.token(iss="https://evil.example"): "issuer 'https://evil.example'",
            issuer.token(key="second", sub=5): "Subject",
            issuer.token(key="second", exp=None): "exp",
            issuer.token(key="second", exp=test.clock.now() - 6 * SECOND): "expired",
            issuer.token(key="second", nbf=test.clock.now() + 6 * SECOND): "nbf is in the future",
            issuer.token(key="second", iat=test.clock.now() + 6 * SECOND): "iat is in the future",
            issuer.token(key="second", exp=1e300): "should be a time",
            issuer.token(key="second", much="x" * 8192): "more than 8192 characters",
            unsigned({"alg": "ES256"}, good): "has no key ''",
            unsigned({"alg": "ES256", "kid": "first", "x": 1}, {"a": "x"}).replace(".", "…"): "some that no token has",
            "[" * 8000: "no JSON Web Token",
            "a." + base64.urlsafe_b64encode(b"[" * 5000).decode() + ".b": "no JSON Web Token",
            "": "no JSON Web Token",
        }.items():
            assert said in await refusal(test, wrong), wrong
        within = {"exp": test.clock.now() - 4 * SECOND, "iat": test.clock.now() + 4 * SECOND}
        for name, time in within.items():
            found = await test.tokens.verify(issuer.token(key="second", **{name: time}))  # type: ignore[arg-type]  # a claim
            assert found.identity.subject == "ada"


async def test_keys_are_fetched_once_rotated_and_served_while_the_provider_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with signed_in() as (test, issuer):
        old, tokens = issuer.token(), [issuer.token(f"user {number}") for number in range(20)]
        await asyncio.gather(*map(test.tokens.verify, tokens))
        assert issuer.asked[KEYS] == 1, "single flight"
        issuer.rotate("second")
        new = issuer.token(key="second")
        for _ in range(3):
            assert "has no key 'second'" in await refusal(test, new)
        for number in range(30):
            await refusal(test, issuer.token(key=f"unknown {number}"))
        assert issuer.asked[KEYS] == 1, "an attacker's unknown keys do not reach the provider"
        await test.tokens.verify(old)
        test.clock.advance(31 * SECOND)
        await test.tokens.verify(new)
        assert issuer.asked[KEYS] == 2
        assert "has no key 'first'" in await refusal(test, old), "a key that is gone signs nothing, seen before or not"

        monkeypatch.setattr(keys_module, "_PATIENCE", 0.1)
        issuer.answers.clear()
        test.clock.advance(timedelta(minutes=30))
        await test.tokens.verify(new)  # by the stale key
        assert "has no key 'third'" in await refusal(test, issuer.token(key="third"))
        assert issuer.asked["/.well-known/openid-configuration"] == 3
        test.clock.advance(timedelta(hours=25))
        with pytest.raises(ProviderUnavailable):
            await test.tokens.verify(issuer.token(key="second"))


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (KEYS, b'{"keys": [' + b" " * 50 * 2**20 + b"]}"),
        (KEYS, b"[" * 100_000),
        (KEYS, (302, "http://169.254.169.254/keys")),
        (
            "/.well-known/openid-configuration",
            b'{"issuer": "https://evil.example", "jwks_uri": "https://evil.example"}',
        ),
        ("/.well-known/openid-configuration", b'{"issuer": "URL", "jwks_uri": "file:///etc/passwd"}'),
        ("/.well-known/openid-configuration", b"[]"),
    ],
)
async def test_what_a_provider_may_not_answer_makes_it_unavailable(path: str, answer: Any) -> None:
    async with signed_in() as (test, issuer):
        token = issuer.token()
        issuer.documents[path] = answer.replace(b"URL", issuer.url.encode()) if isinstance(answer, bytes) else answer
        for _ in range(3):
            with pytest.raises(ProviderUnavailable):
                await test.tokens.verify(token)
        assert issuer.asked[path] == 1
        issuer.documents.clear()
        test.clock.advance(6 * SECOND)
        assert (await test.tokens.verify(token)).identity.subject == "ada"


async def test_a_custom_issuer_brings_its_keys_as_data() -> None:
    jwks = base64.b64encode(json.dumps({"keys": [public_jwk("ES256", "mine")]}).encode()).decode()
    auth = [CustomJWT("shop.example", f"data:application/json;base64,{jwks}", "ES256")]
    async with TestApp(App(auth=auth)) as test:
        issuer = Provider("https://shop.example/", test.clock)
        verified = await test.tokens.verify(issuer.token(key="mine", aud=None, properties={"plan": {"id": 3}}))
        assert verified.identity.claims == {"properties.plan.id": 3}
        foreign = await refusal(test, issuer.token(key="mine", iss="https://else.example"))
        assert "configured providers: CustomJWT(issuer=shop.example, app_id=none)." in foreign
        assert "has no key 'other'" in await refusal(test, issuer.token(key="other"))
        test.clock.advance(timedelta(minutes=59))
        assert test.tokens.holds(verified)
        test.clock.advance(timedelta(minutes=2))
        assert not test.tokens.holds(verified)


async def test_a_shared_secret_signs_with_the_declared_algorithm_only() -> None:
    secret = "ü" * 16  # 32 bytes
    public = public_pem("mine")
    jwks = json.dumps({"keys": [public_jwk("ES256", "mine"), {"kty": "oct", "k": "c2VjcmV0", "kid": "oct"}]})
    auth = [
        CustomJWT("own", secret=secret, algorithm="HS256", application_id="shop"),
        CustomJWT("bytes", secret=b"\xff" * 32),
        CustomJWT("keys", f"data:,{quote(jwks)}", "ES256"),
    ]
    async with TestApp(App(auth=auth)) as test:
        expires = test.clock.now() + timedelta(hours=1)

        def signed(issuer: str, key: Any, algorithm: str = "HS256", **headers: Any) -> str:
            claims = {"iss": issuer, "sub": "ada", "aud": "shop", "exp": expires}
            return jwt.encode(claims, key, algorithm, headers)

        for headers in ({}, {"kid": "unknown"}, {"jwk": {"kty": "oct", "k": "AA"}, "jku": "http://evil.test"}):
            found = await test.tokens.verify(signed("own", secret.encode(), **headers))
            assert (found.identity.token_identifier, test.tokens.holds(found)) == ("own|ada", True)
        await test.tokens.verify(signed("bytes", b"\xff" * 32))
        wrong = [
            signed("own", b"\xff" * 32),
            signed("bytes", secret.encode()),
            signed("own", None, "none"),
            signed("own", secret.encode() + b"x"),
            signed("own", secret.encode() * 4, "HS512"),
            signed("own", private_key("ES256", "mine"), "ES256", kid="mine"),
            signed("keys", b"secret" * 9, kid="mine"),
            signed("keys", base64.urlsafe_b64encode(public), kid="mine"),
            signed("keys", secret.encode(), kid="oct"),
            signed("keys", private_key("RS256", "mine"), "RS256", kid="mine"),
        ]
        for token in wrong:
            assert await refusal(test, token)
    for given in ("x" * 31, b"x" * 31, "ü" * 15, public, " ".join(["ssh-rsa", "A" * 64]), 5):
        with pytest.raises(DeclarationError, match="32 bytes or more"):
            CustomJWT("own", secret=given)  # type: ignore[arg-type]  # wrong on purpose
    for kind, words in (
        ("both", {"secret": secret, "jwks": "https://shop.example/keys", "algorithm": "ES256"}),
        ("neither", {}),
        ("does not fit", {"secret": secret, "algorithm": "HS512"}),
        ("does not fit", {"secret": secret, "algorithm": "none"}),
        ("does not fit", {"jwks": "https://shop.example/keys", "algorithm": "HS256"}),
    ):
        with pytest.raises(DeclarationError, match=kind):
            CustomJWT("own", **words)  # type: ignore[arg-type]  # wrong on purpose


def test_an_unsafe_provider_is_refused_when_it_is_declared() -> None:
    for declare in (
        lambda: OIDC("http://shop.example", "shop"),
        lambda: OIDC("https://shop.example", ""),
        lambda: CustomJWT("shop", "http://shop.example/keys", "ES256"),
        lambda: CustomJWT("shop", "data:nonsense", "ES256"),
        lambda: CustomJWT("shop", "data:;base64,@", "ES256"),
        lambda: CustomJWT("shop", "https://shop.example/keys", "HS256"),
    ):
        with pytest.raises(DeclarationError):
            declare()
    OIDC("shop.example", "shop")
    OIDC("http://localhost:8080", "shop")
    providers: Any
    for providers in (OIDC("shop.example", "shop"), ["https://shop.example"], "https://shop.example"):
        with pytest.raises(DeclarationError, match=r"no list of providers\. Write auth=\[OIDC"):
            App(auth=providers)


def test_claims_become_the_fields_of_convex() -> None:
    claims = {
        "iss": "i", "sub": "s", "aud": "a", "exp": 1, "iat": 1, "nbf": 1, "jti": "j", "auth_time": 1,
        "nonce": "n", "at_hash": "h",
        "name": "N", "picture": "P", "zoneinfo": "Z", "locale": "L", "birthdate": "B", "updated_at": 0,
        "email_verified": True, "address": {"formatted": "here"}, "gender": 5, "org": {"id": 1},
    }  # fmt: skip
    identity = identity_of(claims, flat=False)
    assert identity.model_dump(by_alias=True, exclude_none=True) == {
        "subject": "s", "issuer": "i", "tokenIdentifier": "i|s", "name": "N", "pictureUrl": "P", "timezone": "Z",
        "language": "L", "birthday": "B", "updatedAt": "1970-01-01T00:00:00Z", "emailVerified": True,
        "address": "here", "claims": {"gender": 5, "org": {"id": 1}},
    }  # fmt: skip
    later = identity_of({**dict(reversed(claims.items())), "exp": 9, "iat": 8}, flat=False)
    assert later.key == identity.key, "a new token of the same user"
    assert identity_of({**claims, "name": "M"}, flat=False).key != identity.key


async def test_an_api_key_says_who_calls_until_it_expires_or_is_revoked(database_url: str) -> None:
    async with signed_in(database_url) as (test, _):
        key, keys, now = PREFIX + "a secret", test.engine.store.api_keys, test.clock.now()
        assert "unknown, revoked or expired" in await refusal(test, key)
        await keys.create("billing", hash_of(key), ["read"], now, now + timedelta(days=1))
        verified = await test.tokens.verify(key)
        identity = verified.identity
        assert (identity.token_identifier, identity.claims) == ("penstock|billing", {"scopes": ["read"]})
        test.clock.advance(3 * SECOND)
        await test.tokens.verify(key)
        await keys.revoke("billing")
        await test.tokens.verify(key)  # for a moment
        test.clock.advance(3 * SECOND)
        assert "revoked" in await refusal(test, key)
        await keys.create("billing", hash_of(key), [], now, now + timedelta(seconds=20))
        await test.tokens.verify(key)
        test.clock.advance(timedelta(seconds=20))
        assert "expired" in await refusal(test, key)
