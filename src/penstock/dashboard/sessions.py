"""Who looks at the dashboard, and what they may do.

A browser keeps an opaque cookie, and the process what it stands for, in memory: the token with which somebody signed
in is checked again at each request, so that a revoked key ends the session within seconds.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from penstock.app import Backend
from penstock.clock import secret
from penstock.config import Config
from penstock.dashboard.page import Role
from penstock.errors import AccessDenied, Unauthenticated
from penstock.identity.api_key import PREFIX
from penstock.identity.identity import Identity
from penstock.server.callers import Credentials, anonymous, is_admin, with_token

_COOKIE = "penstock_dashboard"
_SECONDS = 12 * 3600.0
_SECONDS_OF_PROVIDER = 3600.0  # nobody tells us when a provider has locked somebody out
_MOST = 10_000
_DOTS = 2  # in a token of a provider
_HERE = {"localhost", "127.0.0.1", "::1"}
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host")


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody who has signed in.

    Attributes:
        who: Their name in the audit log.
        role: What they may do.
        ends: When they have to sign in again, by the monotonic clock.
        credentials: Their token; None for the admin token, who signed in by redirect, and a developer on this machine.
    """

    who: str
    role: Role
    ends: float
    credentials: Credentials | None = None


class Sessions:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._sessions: dict[str, Session] = {}

    async def find(self, request: Request, backend: Backend) -> Session | None:
        """The session of a request; None if nobody has signed in, or the session has ended."""
        now, key = backend.engine.machine.monotonic(), request.cookies.get(_COOKIE, "")
        session = self._sessions.get(key)
        if session is not None and await self.holds(session, backend):
            return session
        self._sessions.pop(key, None)
        return Session("developer", Role.edit, now + _SECONDS) if self._is_developer(request) else None

    async def holds(self, session: Session, backend: Backend) -> bool:
        """Whether a session has not ended, and its token still holds."""
        try:
            if session.credentials is not None:
                await session.credentials.check(backend.tokens)
        except Unauthenticated:
            return False
        return backend.engine.machine.monotonic() < session.ends

    async def sign_in(self, request: Request, backend: Backend, token: str) -> str:
        """Begin a session; its cookie.

        Raises:
            Unauthenticated: The token is wrong.
            AccessDenied: It gives no role here.
            ProviderUnavailable: It cannot be verified now.
        """
        ends = backend.engine.machine.monotonic() + _SECONDS
        if is_admin(token.encode("utf-8", "surrogateescape"), self._config.admin_token):
            return self._begin(Session("the admin token", Role.edit, ends))
        if not token.startswith(PREFIX) and token.count(".") != _DOTS:
            raise AccessDenied("This is neither the admin token, nor an API key, nor a token of a provider.")
        found = await with_token(anonymous(request), token, backend.tokens)
        if found.caller.identity is None:
            raise AccessDenied("This token names nobody.")
        return self._begin(_session(found.caller.identity, ends, found))

    def begin(self, identity: Identity, backend: Backend) -> str:
        """Begin a session of who comes from a provider; its cookie. Raises `AccessDenied` as `sign_in` does."""
        return self._begin(_session(identity, backend.engine.machine.monotonic() + _SECONDS_OF_PROVIDER))

    def _begin(self, session: Session) -> str:
        key = secret()
        self._sessions[key] = session
        if len(self._sessions) > _MOST:
            del self._sessions[next(iter(self._sessions))]
        return key

    def sign_out(self, request: Request) -> None:
        """End the session."""
        self._sessions.pop(request.cookies.get(_COOKIE, ""), None)

    def _is_developer(self, request: Request) -> bool:
        """Whether it comes from a browser on this machine to ``penstock dev``.

        The header host tells a page of another site whose name was made to lead here; the others tell a tunnel.
        """
        near = request.client is not None and _is_loopback(request.client.host)
        direct = not any(name in request.headers for name in _FORWARDED)
        return self._config.dev and near and direct and request.url.hostname in _HERE


def _session(identity: Identity, ends: float, credentials: Credentials | None = None) -> Session:
    role, name = role_of(identity), identity.name or identity.subject
    if role is None:
        raise AccessDenied(f"{name} has no right to look: the token lacks the scope dashboard:look.")
    return Session(f"{name} ({identity.issuer})", role, ends, credentials)


def role_of(identity: Identity) -> Role | None:
    """The role that the scopes of an API key, or of a token, give: of several the highest."""
    words = {word for name in ("scopes", "scope") for word in _words(identity.claims, name)}
    return max((role for role in Role if f"dashboard:{role.name}" in words), default=None)


def set_cookie(request: Request, response: Response, key: str) -> None:
    """Give a browser its cookie, or with an empty one take it away."""
    response.set_cookie(
        _COOKIE,
        key,
        max_age=int(_SECONDS) if key else 0,
        path=request.scope["root_path"] or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def is_own(request: Request) -> bool:
    """Whether a page of the dashboard itself sent a form, and no other site."""
    origin = request.headers.get("origin")
    if origin is None:
        return request.headers.get("sec-fetch-site") == "same-origin"
    return urlsplit(origin).netloc == request.headers.get("host")


def _words(claims: Mapping[str, Any], name: str) -> list[str]:
    value = claims.get(name, ())
    return value.split() if isinstance(value, str) else [one for one in value if isinstance(one, str)]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
