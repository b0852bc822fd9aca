"""The people who look at the dashboard: their rights, and how they sign in by redirect.

A browser keeps an opaque cookie, and the database what it stands for, encrypted with a key that is made of the cookie.
So all processes know a session, and nobody learns a token from the database. The token with which somebody signed in
is checked again at each request, so that a revoked key ends the session within seconds.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import asdict, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Literal
from urllib.parse import urlsplit

from cryptography.fernet import Fernet
from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock.api.identity.codes import SignIn
from penstock.app import Backend
from penstock.calls.run.ratelimits import key_of, take_tokens
from penstock.clock import secret
from penstock.config import Config
from penstock.dashboard.page import Role
from penstock.dataclass import dataclass
from penstock.errors import AccessDenied, RateLimited, Unauthenticated
from penstock.identity.api_key import PREFIX
from penstock.identity.caller import address_of
from penstock.identity.identity import Identity
from penstock.identity.providers import OIDC, dashboard_providers, issuer_url
from penstock.pools.rates import TokenBucket
from penstock.server.callers import Credentials, anonymous, is_admin, with_token

_COOKIE = "penstock_dashboard"
_LASTS = timedelta(hours=12)
_LASTS_OF_PROVIDER = timedelta(hours=1)  # nobody tells us when a provider has locked somebody out
_SIGN_IN, _LASTS_OF_SIGN_IN = "penstock_sign_in", timedelta(minutes=10)
_ATTEMPTS = TokenBucket(rate=20, period=timedelta(minutes=1))  # of an address, in all processes
_LONGEST = 2000  # characters of the path to go on with
_DOTS = 2  # in a token of a provider
_HERE = {"localhost", "127.0.0.1", "::1"}
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host")


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody who has signed in."""

    who: str  # their name in the audit log
    role: Role  # what they may do
    ends: datetime  # when they have to sign in again
    # what versions of rows are hashed with in their forms, so that hashes tell nothing of what is hidden
    salt: str = field(repr=False)
    # their token; None for the admin token, who signed in by redirect, and a developer on this machine
    credentials: Credentials | None = None


class Sessions:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._salt = secret()  # of developers

    async def find(self, request: Request, backend: Backend) -> Session | None:
        """The session of a request; None if nobody has signed in, or the session has ended."""
        kept = await _open(backend, request.cookies.get(_COOKIE, ""))
        if kept is not None:
            ends, salt, token = datetime.fromisoformat(kept["ends"]), kept["salt"], kept["token"]
            if token is None:
                return Session(kept["who"], Role[kept["role"]], ends, salt)
            try:
                return await self._of_token(request, backend, token, ends, salt)
            except (AccessDenied, Unauthenticated):
                pass
        ends = backend.engine.clock.now() + _LASTS
        return Session("developer", Role.edit, ends, self._salt) if self._is_developer(request) else None

    async def holds(self, session: Session, backend: Backend) -> bool:
        """Whether a session has not ended, and its token still holds."""
        try:
            if session.credentials is not None:
                await session.credentials.check(backend.tokens)
        except Unauthenticated:
            return False
        return backend.engine.clock.now() < session.ends

    async def sign_in(self, request: Request, backend: Backend, token: str) -> str:
        """Begin a session; its cookie.

        Raises:
            Unauthenticated: The token is wrong.
            AccessDenied: It gives no role here.
            ProviderUnavailable: It cannot be verified now.
        """
        session = await self._of_token(request, backend, token, backend.engine.clock.now() + _LASTS, secret())
        return await self._begin(backend, session, token)

    async def begin(self, identity: Identity, backend: Backend) -> str:
        """Begin a session of who comes from a provider; its cookie. Raises `AccessDenied` as `sign_in` does."""
        session = _session(identity, backend.engine.clock.now() + _LASTS_OF_PROVIDER, secret())
        return await self._begin(backend, session, None)

    async def sign_out(self, request: Request, backend: Backend) -> None:
        """End the session."""
        await _open(backend, request.cookies.get(_COOKIE, ""), last=True)

    async def _begin(self, backend: Backend, session: Session, token: str | None) -> str:
        about = {"who": session.who, "role": session.role.name, "salt": session.salt, "token": token}
        return await _keep(backend, {**about, "ends": session.ends.isoformat()}, session.ends)

    async def _of_token(self, request: Request, backend: Backend, token: str, ends: datetime, salt: str) -> Session:
        if is_admin(token.encode("utf-8", "surrogateescape"), self._config.admin_token):
            return Session("the admin token", Role.edit, ends, salt)
        if not token.startswith(PREFIX) and token.count(".") != _DOTS:
            raise AccessDenied("This is neither the admin token, nor an API key, nor a token of a provider.")
        found = await with_token(anonymous(request), token, backend.tokens)
        if found.caller.identity is None:
            raise AccessDenied("This token names nobody.")
        return _session(found.caller.identity, ends, salt, found)

    def _is_developer(self, request: Request) -> bool:
        """Whether it comes from a browser on this machine to ``penstock dev``.

        The header host tells a page of another site whose name was made to lead here; the others tell a tunnel.
        """
        host = "" if request.client is None else request.client.host.lower().removeprefix("::ffff:")
        # No tunnel and no translator leads to this machine, whatever address of version 4 they name.
        address = address_of(host) if ":" not in host or host == "::1" else None
        direct = not any(name in request.headers for name in _FORWARDED)
        return self._config.dev and bool(address and address.is_loopback) and direct and request.url.hostname in _HERE


def _session(identity: Identity, ends: datetime, salt: str, credentials: Credentials | None = None) -> Session:
    role, name = role_of(identity), identity.name or identity.subject
    if role is None:
        raise AccessDenied(f"{name} has no right to look: the token lacks the scope dashboard:look.")
    return Session(f"{name} ({identity.issuer})", role, ends, salt, credentials)


def role_of(identity: Identity) -> Role | None:
    """The role that the scopes of an API key, or of a token, give: of several the highest."""
    words = {word for name in ("scopes", "scope") for word in _words(identity.claims, name)}
    return max((role for role in Role if f"dashboard:{role.name}" in words), default=None)


def set_cookie(request: Request, response: Response, key: str, *, of_sign_in: bool = False) -> None:
    """Give a browser the cookie of its session or its sign-in, or with an empty one take it away."""
    name, lasts, path = _COOKIE, _LASTS, request.scope["root_path"] or "/"
    samesite: Literal["lax", "strict"] = "strict"
    if of_sign_in:  # which a provider's redirect has to bring
        name, lasts, path, samesite = _SIGN_IN, _LASTS_OF_SIGN_IN, _path(request), "lax"
    secure, age = request.url.scheme == "https", int(lasts.total_seconds()) if key else 0
    response.set_cookie(name, key, age, path=path, secure=secure, httponly=True, samesite=samesite)


async def throttle(request: Request, backend: Backend) -> None:
    """Count an attempt to sign in, before anything is compared. Raises `RateLimited` if there were too many."""
    key = key_of(anonymous(request).caller)
    taken = await take_tokens(backend.job_calls, "penstock.sign_in", _ATTEMPTS, key, 1, reserve=False)
    if not taken.ok:
        raise RateLimited(taken.retry_after.total_seconds())


async def _keep(backend: Backend, content: Mapping[str, Any], until: datetime) -> str:
    """Keep something under a new cookie."""
    cookie = secret()
    session_id, key = _hashes(cookie)
    await backend.engine.store.dashboard_sessions.create(session_id, key.encrypt(to_json(content)).decode(), until)
    return cookie


async def _open(backend: Backend, cookie: str, *, last: bool = False) -> Any:
    """The session kept under a cookie; None if nothing is. The `last` time it is forgotten."""
    session_id, key = _hashes(cookie)
    sessions, now = backend.engine.store.dashboard_sessions, backend.engine.clock.now()
    content = await sessions.find(session_id, now, last=last)
    return None if content is None else from_json(key.decrypt(content))


def _hashes(cookie: str) -> tuple[str, Fernet]:
    """The hash that a cookie is found by, and the key of its content; neither tells the other."""
    session_id, key = (sha256(f"{name} {cookie}".encode("utf-8", "replace")) for name in ("id", "key"))
    return session_id.hexdigest(), Fernet(urlsafe_b64encode(key.digest()))


def is_own(request: Request) -> bool:
    """Whether a page of the dashboard itself sent a form, and no other site."""
    origin = request.headers.get("origin")
    if origin is None:
        return request.headers.get("sec-fetch-site") == "same-origin"
    return urlsplit(origin).netloc == request.headers.get("host")


def _words(claims: Mapping[str, Any], name: str) -> list[str]:
    value = claims.get(name)
    found = value.split() if isinstance(value, str) else value if isinstance(value, list) else ()
    return [one for one in found if isinstance(one, str)]


# ----- signing in by redirect: the database remembers each under a cookie of its own, until it ends, once


async def start_sign_in(request: Request, backend: Backend, where: str) -> Response:
    """Send a browser to the provider that it names, to go on with a path afterwards."""
    named = request.query_params.get("provider", "")
    provider = _provider(backend, named)
    if provider is None:
        raise AccessDenied("Nobody can sign in there.")
    await throttle(request, backend)
    sign_in = SignIn(provider, str(request.url.replace(path=f"{_path(request)}/back", query="")))
    response = RedirectResponse(await backend.tokens.codes.url(sign_in), 303)
    content = {"where": where[:_LONGEST], "sign_in": {**asdict(sign_in), "provider": named}}
    key = await _keep(backend, content, backend.engine.clock.now() + _LASTS_OF_SIGN_IN)
    set_cookie(request, response, key, of_sign_in=True)
    return response


async def finish_sign_in(request: Request, backend: Backend) -> tuple[Identity, str]:
    """Identify a person who comes back from a provider; their session and the path to go on with.

    Raises:
        AccessDenied: They were not sent there from this browser in the last minutes, or the provider refuses them.
        Unauthenticated: The ID token is wrong.
        ProviderUnavailable: The provider does not answer.
    """
    words = request.query_params
    kept = await _open(backend, request.cookies.get(_SIGN_IN, ""), last=True)
    provider = None if kept is None else _provider(backend, kept["sign_in"]["provider"])
    sign_in = None if provider is None else SignIn(**kept["sign_in"] | {"provider": provider})
    if sign_in is None or not _is_answer(sign_in, words):
        raise AccessDenied("This sign-in did not begin in this browser, or has ended. Sign in again.")
    if "code" not in words:
        said = ": ".join(words.get(name, "")[:200] for name in ("error", "error_description") if name in words)
        raise AccessDenied(f"{sign_in.provider.issuer} has refused the sign-in: {said}")
    return await backend.tokens.redeem(sign_in, words["code"]), kept["where"]


def _provider(backend: Backend, named: str) -> OIDC | None:
    return next((one for one in dashboard_providers(backend.app.auth) if one.domain == named), None)


def _is_answer(sign_in: SignIn, words: Mapping[str, str]) -> bool:
    """Whether a provider answers to this sign-in; some tell who they are."""
    same = hmac.compare_digest(words.get("state", "").encode(), sign_in.state.encode())
    issuer = issuer_url(sign_in.provider.issuer)
    return same and issuer_url(words.get("iss", issuer)) == issuer


def _path(request: Request) -> str:
    return f"{request.scope['root_path']}/sign-in"
