"""A provider of identities on the loopback, which can rotate its keys, hang or misbehave; a server that trusts it."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from functools import cache
from hashlib import sha256
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from stage.sockets import SocketClient, listening, socket_client
from stage.waits import SOON
from starlette.applications import Starlette

from penstock import OIDC, App, Identity, MutationCtx, QueryCtx, Table, asgi_app
from penstock.clock import Clock
from penstock.testing import TestApp, TestClock

_DISCOVERY, _KEYS = "/.well-known/openid-configuration", "/keys"
_ENDPOINTS = {"authorization": "authorize", "token": "token"}


@cache
def private_key(algorithm: str, name: str) -> Any:
    """A key of a name; keys of RSA take long to make."""
    if algorithm == "RS256":
        return rsa.generate_private_key(65537, 2048)
    return ec.generate_private_key(ec.SECP256R1()) if algorithm == "ES256" else ed25519.Ed25519PrivateKey.generate()


def public_jwk(algorithm: str, name: str, **fields: Any) -> dict[str, Any]:
    of: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}
    found: dict[str, Any] = of[algorithm].to_jwk(private_key(algorithm, name).public_key(), as_dict=True)
    return {**found, "kid": name, **fields}


class Provider:
    """A provider.

    Attributes:
        url: Its address, and its issuer.
        asked: How often each path was asked for.
        keys: The set of keys that it shows.
        documents: What it answers in place of its own answers, by path: bytes, or a status and a place to go to.
        hangs: Cleared while it answers nothing.
        visitor: The claims of who is signed in there, and of their ID tokens.
        asks: Whether it shows a page with a link back, as providers do that ask for a password.
        answer: What it sends people back with in place of a code.
        redeemed: The headers of those who have redeemed a code.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        self.url = url
        self.clock = clock
        self.asked = Counter[str]()
        self.keys = [public_jwk("ES256", "first")]
        self.documents: dict[str, bytes | tuple[int, str]] = {}
        self.answers = threading.Event()
        self.answers.set()
        self.visitor: dict[str, Any] = {}
        self.asks = False
        self.answer: dict[str, str] = {}
        self.redeemed: list[dict[str, str]] = []
        self._codes: dict[str, dict[str, str]] = {}

    def authorize(self, words: dict[str, str]) -> str:
        """Where to send somebody who wants to sign in to a client."""
        code = f"code-{self.asked['/authorize']}"
        self._codes[code] = words
        said = self.answer or {"code": code, "iss": self.url}
        return f"{words['redirect_uri']}?{urlencode({'state': words['state'], **said})}"

    def redeem(self, form: dict[str, str], headers: dict[str, str]) -> dict[str, str] | None:
        """The ID token for a code, which it gives once; None to those who have not asked for it."""
        words = self._codes.pop(form["code"], {})
        challenge = base64.urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
        same = all(words.get(name) == form[name] for name in ("client_id", "redirect_uri"))
        if not same or challenge != words["code_challenge"]:
            return None
        self.redeemed.append(headers)
        claims = {"aud": words["client_id"], "nonce": words["nonce"], **self.visitor}
        return {"id_token": self.token(**claims)}

    def token(self, subject: str = "ada", *, key: str = "first", algorithm: str = "ES256", **claims: Any) -> str:
        """A token for the application ``shop``, which holds for an hour; a claim that is None is left out."""
        now = self.clock.now()
        given = {"sub": subject, "iss": self.url, "aud": "shop", "iat": now, "exp": now + timedelta(hours=1), **claims}
        said = {name: value.timestamp() if isinstance(value, datetime) else value for name, value in given.items()}
        said = {name: value for name, value in said.items() if value is not None}
        signer = jwt.PyJWS()  # which, unlike `jwt.encode`, signs whatever it is given
        return signer.encode(json.dumps(said).encode(), private_key(algorithm, key), algorithm, headers={"kid": key})

    def rotate(self, name: str) -> None:
        self.keys = [public_jwk("ES256", name)]

    def document(self, path: str) -> bytes | tuple[int, str]:
        self.asked[path] += 1
        self.answers.wait(30)
        endpoints = {f"{name}_endpoint": f"{self.url}/{at}" for name, at in _ENDPOINTS.items()}
        document = {"issuer": self.url, "jwks_uri": self.url + _KEYS, **endpoints}
        found = {_DISCOVERY: document, _KEYS: {"keys": self.keys}}
        return self.documents.get(path) or (json.dumps(found[path]).encode() if path in found else (404, ""))


@contextmanager
def provider(clock: Clock) -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, words = urlsplit(self.path).path, dict(parse_qsl(urlsplit(self.path).query))
            found = one.document(path)
            if path == "/authorize":
                back = one.authorize(words)
                found = (
                    f'<!doctype html><link rel="icon" href="data:,"><a href="{escape(back)}">Back</a>'.encode()
                    if one.asks
                    else (302, back)
                )
            self._say(found)

        def do_POST(self) -> None:
            form = dict(parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
            found = one.redeem(form, {name.lower(): text for name, text in self.headers.items()})
            self._say(one.documents.get(self.path) or ((400, "") if found is None else json.dumps(found).encode()))

        def _say(self, found: bytes | tuple[int, str]) -> None:
            status, place = found if isinstance(found, tuple) else (200, "")
            try:
                self.send_response(status)
                if place:
                    self.send_header("location", place)
                self.end_headers()
                self.wfile.write(found if isinstance(found, bytes) else b"")
            except OSError:  # nobody listens any more
                pass

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    one = Provider(f"http://127.0.0.1:{server.server_port}", clock)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield one
    finally:
        one.answers.set()
        server.shutdown()
        server.server_close()
        thread.join()


ADMIN = "the admin token:"


class Paper(Table):
    owner: str
    text: str


class House:
    """A server, its provider, and how often its queries ran."""

    def __init__(self, issuer: Provider) -> None:
        self.issuer = issuer
        self.app = app = App(tables=[Paper], auth=[OIDC(issuer.url, "shop")])
        self.runs = 0
        self.url = ""
        self.web: Starlette
        self.test: TestApp
        self.http: httpx.AsyncClient

        @app.query
        async def whoami(ctx: QueryCtx) -> Identity | None:
            self.runs += 1
            return await ctx.auth.get_user_identity()

        @app.query
        async def papers(ctx: QueryCtx, loud: bool = False) -> list[str]:
            self.runs += 1
            owner = (await ctx.auth.require()).subject
            found = [paper.text async for paper in ctx.db.query(Paper) if paper.owner == owner]
            return [one.upper() for one in found] if loud else found

        @app.query
        async def number(ctx: QueryCtx) -> int:
            self.runs += 1
            return await ctx.db.query(Paper).count()

        @app.mutation
        async def write(ctx: MutationCtx, text: str) -> str:
            owner = (await ctx.auth.require()).subject
            await ctx.db.insert(Paper(owner=owner, text=text))
            return owner

        @app.mutation
        async def greet(ctx: MutationCtx) -> str:
            return (await ctx.auth.require()).subject

        @app.internal_query
        async def inner(ctx: QueryCtx) -> bool:
            return ctx._scope.transaction.caller.is_system

    async def call(self, kind: str, function: str, authorization: str = "", /, **args: Any) -> httpx.Response:
        headers = {"authorization": authorization} if authorization else {}
        body = {"path": f"{__name__}:{function}", "args": args, "format": "json"}
        return await self.http.post(f"/api/{kind}", json=body, headers=headers)

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[SocketClient]:
        async with socket_client(self.url, __name__) as client:
            await client.connect()
            yield client


@asynccontextmanager
async def house(database: str, clock: TestClock | None = None) -> AsyncIterator[House]:
    clock = clock or TestClock()
    with provider(clock) as issuer:
        one = House(issuer)
        async with (
            TestApp(one.app, database, clock=clock, admin_token=ADMIN) as test,
            listening(web := asgi_app(one.app, backend=test)) as url,
            httpx.AsyncClient(base_url=url, timeout=SOON) as http,
        ):
            one.url, one.web, one.test, one.http = url, web, test, http
            yield one
