"""Tokens: microseconds to know the caller of a token that came before, and of one that comes for the first time."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from benchmarks.harness import Bar, Bench, Benchmark
from penstock import App, CustomJWT
from penstock.identity.providers import Algorithm

_KEYS: dict[Algorithm, tuple[Any, Any]] = {
    "RS256": (rsa.generate_private_key(65537, 2048), RSAAlgorithm),
    "ES256": (ec.generate_private_key(ec.SECP256R1()), ECAlgorithm),
    "EdDSA": (ed25519.Ed25519PrivateKey.generate(), OKPAlgorithm),
}
_CLAIMS = {"name": "Ada Lovelace", "email": "ada@shop.example", "org": {"id": "org_1", "roles": ["a", "b"]}}


def issuer(algorithm: Algorithm) -> str:
    """A provider, as a program declares it, whose tokens `token` makes."""
    key, kind = _KEYS[algorithm]
    jwk = {**kind.to_jwk(key.public_key(), as_dict=True), "kid": algorithm}
    jwks = base64.b64encode(json.dumps({"keys": [jwk]}).encode()).decode()
    return f"CustomJWT({algorithm!r}, 'data:application/json;base64,{jwks}', {algorithm!r})"


def token(algorithm: Algorithm, number: int, age: int = 0) -> str:
    """A token of a user with a number."""
    now = int(time.time()) - age
    claims = {"sub": f"user {number}", "iss": algorithm, "iat": now, "exp": now + 3600, **_CLAIMS}
    return jwt.encode(claims, _KEYS[algorithm][0], algorithm, headers={"kid": algorithm})


async def known(bench: Bench) -> float:
    """Microseconds for a token that came before; the first time of each algorithm is reported."""
    count = bench.sizes.tokens
    auth = [eval(issuer(one), {"CustomJWT": CustomJWT}) for one in _KEYS]
    async with bench.databases.fresh("sqlite") as url, App(auth=auth).open(url) as backend:
        for algorithm in _KEYS:
            fresh = [token(algorithm, number) for number in range(count // 20)]
            begun = time.perf_counter()
            for one in fresh:
                await backend.tokens.verify(one)
            bench.report(f"first_{algorithm.lower()}_us", (time.perf_counter() - begun) / len(fresh) * 1e6)
        one, begun = token("ES256", 0), time.perf_counter()
        for _ in range(count):
            await backend.tokens.verify(one)
        taken = (time.perf_counter() - begun) / count * 1e6
    bench.row(f"{count} times a token of {len(one)} characters", f"{taken:.1f} µs")
    return taken


BENCHMARKS = [Benchmark("token_us", known, Bar(at_most=60))]
