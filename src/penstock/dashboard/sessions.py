"""Who looks at the dashboard, what they may do, and how they sign in by redirect.

A browser keeps an opaque cookie, and the process what it stands for, in memory: the token with which somebody signed
in is checked again at each request, so that a revoked key ends the session within seconds.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock.api.identity.codes import SignIn
from penstock.app import Backend
from penstock.clock import secret
from penstock.config import Config
from penstock.dashboard.page import Role
from penstock.errors import AccessDenied, Unauthenticated
from penstock.identity.api_key import PREFIX
from penstock.identity.caller import address_of
from penstock.identity.identity import Identity
from penstock.identity.providers import dashboard_providers, issuer_url
from penstock.server.callers import Credentials, anonymous, is_admin, with_token

T = TypeVar("T")

_COOKIE = "penstock_dashboard"
_SECONDS = 12 * 3600.0
_SECONDS_OF_PROVIDER = 3600.0  # nobody tells us when a provider has locked somebody out
_SIGN_IN, _SECONDS_OF_SIGN_IN = "penstock_sign_in", 600
_MOST = 10_000
_LONGEST = 2000  # characters of the path to go on with
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
            return _keep(self._sessions, Session("the admin token", Role.edit, ends))
        if not token.startswith(PREFIX) and token.count(".") != _DOTS:
            raise AccessDenied("This is neither the admin token, nor an API key, nor a token of a provider.")
        found = await with_token(anonymous(request), token, backend.tokens)
        if found.caller.identity is None:
            raise AccessDenied("This token names nobody.")
        return _keep(self._sessions, _session(found.caller.identity, ends, found))

    def begin(self, identity: Identity, backend: Backend) -> str:
        """Begin a session of who comes from a provider; its cookie. Raises `AccessDenied` as `sign_in` does."""
        ends = backend.engine.machine.monotonic() + _SECONDS_OF_PROVIDER
        return _keep(self._sessions, _session(identity, ends))

    def sign_out(self, request: Request) -> None:
        """End the session."""
        self._sessions.pop(request.cookies.get(_COOKIE, ""), None)

    def _is_developer(self, request: Request) -> bool:
        """Whether it comes from a browser on this machine to ``penstock dev``.

        The header host tells a page of another site whose name was made to lead here; the others tell a tunnel.
        """
        address = None if request.client is None else address_of(request.client.host)
        direct = not any(name in request.headers for name in _FORWARDED)
        return self._config.dev and bool(address and address.is_loopback) and direct and request.url.hostname in _HERE


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
    _set_cookie(request, response, _COOKIE, key, _SECONDS, request.scope["root_path"] or "/")


def _set_cookie(request: Request, response: Response, name: str, key: str, seconds: float, path: str) -> None:
    secure, age = request.url.scheme == "https", int(seconds) if key else 0
    # A provider's redirect has to bring the cookie of a sign-in.
    samesite: Literal["lax", "strict"] = "lax" if name == _SIGN_IN else "strict"
    response.set_cookie(name, key, age, path=path, secure=secure, httponly=True, samesite=samesite)


def _keep(kept: dict[str, T], one: T) -> str:
    """Keep something under a new secret, and forget the oldest beyond so many."""
    key = secret()
    kept[key] = one
    if len(kept) > _MOST:
        del kept[next(iter(kept))]
    return key


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


# ----- signing in by redirect


@dataclass(frozen=True, slots=True)
class _Awaited:
    sign_in: SignIn
    where: str
    until: float


class Redirects:
    """Who was sent to a provider to sign in, until the provider sends them back.

    What is awaited lies in this process, under an opaque cookie of the browser: each sign-in ends once, and only in the
    browser in which it began.
    """

    def __init__(self) -> None:
        self._awaited: dict[str, _Awaited] = {}

    async def start(self, request: Request, backend: Backend, where: str) -> Response:
        """Send a browser to the provider that it names, to go on with a path afterwards."""
        named = request.query_params.get("provider", "")
        provider = next((one for one in dashboard_providers(backend.app.auth) if one.domain == named), None)
        if provider is None:
            raise AccessDenied("Nobody can sign in there.")
        sign_in = SignIn(provider, str(request.url.replace(path=f"{_path(request)}/back", query="")))
        response = RedirectResponse(await backend.tokens.codes.url(sign_in), 303)
        until = backend.engine.machine.monotonic() + _SECONDS_OF_SIGN_IN
        self.set_cookie(request, response, _keep(self._awaited, _Awaited(sign_in, where[:_LONGEST], until)))
        return response

    async def finish(self, request: Request, backend: Backend) -> tuple[Identity, str]:
        """Who comes back from a provider, and the path to go on with.

        Raises:
            AccessDenied: They were not sent there from this browser in the last minutes, or the provider refuses them.
            Unauthenticated: The ID token is wrong.
            ProviderUnavailable: The provider does not answer.
        """
        words = request.query_params
        awaited = self._awaited.pop(request.cookies.get(_SIGN_IN, ""), None)
        if awaited is None or not _is_answer(awaited, words, backend.engine.machine.monotonic()):
            raise AccessDenied("This sign-in did not begin in this browser, or has ended. Sign in again.")
        if "code" not in words:
            said = ": ".join(words.get(name, "")[:200] for name in ("error", "error_description") if name in words)
            raise AccessDenied(f"{awaited.sign_in.provider.issuer} has refused the sign-in: {said}")
        return await backend.tokens.redeem(awaited.sign_in, words["code"]), awaited.where

    def set_cookie(self, request: Request, response: Response, key: str) -> None:
        """Give a browser the cookie, or with an empty one take it away."""
        _set_cookie(request, response, _SIGN_IN, key, _SECONDS_OF_SIGN_IN, _path(request))


def _is_answer(awaited: _Awaited, words: Mapping[str, str], now: float) -> bool:
    """Whether a provider answers to this sign-in, in time; some tell who they are."""
    same = hmac.compare_digest(words.get("state", "").encode(), awaited.sign_in.state.encode())
    issuer = issuer_url(awaited.sign_in.provider.issuer)
    return same and issuer_url(words.get("iss", issuer)) == issuer and now < awaited.until


def _path(request: Request) -> str:
    return f"{request.scope['root_path']}/sign-in"
