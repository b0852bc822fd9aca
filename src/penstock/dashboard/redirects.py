"""Signing in by redirect: who was sent to a provider, until the provider sends them back.

What is awaited lies in this process, under an opaque cookie of the browser: each sign-in ends once, and only in the
browser in which it began.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock.api.identity.codes import SignIn
from penstock.app import Backend
from penstock.clock import secret
from penstock.errors import AccessDenied
from penstock.identity.identity import Identity
from penstock.identity.providers import dashboard_providers, issuer_url

_COOKIE, _SECONDS = "penstock_sign_in", 600
_MOST = 10_000
_LONGEST = 2000  # characters of the path to go on with


@dataclass(frozen=True, slots=True)
class _Awaited:
    sign_in: SignIn
    where: str
    until: float


class Redirects:
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
        key, until = secret(), backend.engine.machine.monotonic() + _SECONDS
        self._awaited[key] = _Awaited(sign_in, where[:_LONGEST], until)
        if len(self._awaited) > _MOST:
            del self._awaited[next(iter(self._awaited))]
        self.set_cookie(request, response, key)
        return response

    async def finish(self, request: Request, backend: Backend) -> tuple[Identity, str]:
        """Who comes back from a provider, and the path to go on with.

        Raises:
            AccessDenied: They were not sent there from this browser in the last minutes, or the provider refuses them.
            Unauthenticated: The ID token is wrong.
            ProviderUnavailable: The provider does not answer.
        """
        words = request.query_params
        awaited = self._awaited.pop(request.cookies.get(_COOKIE, ""), None)
        if awaited is None or not _is_answer(awaited, words, backend.engine.machine.monotonic()):
            raise AccessDenied("This sign-in did not begin in this browser, or has ended. Sign in again.")
        if "code" not in words:
            said = ": ".join(words.get(name, "")[:200] for name in ("error", "error_description") if name in words)
            raise AccessDenied(f"{awaited.sign_in.provider.issuer} has refused the sign-in: {said}")
        return await backend.tokens.redeem(awaited.sign_in, words["code"]), awaited.where

    def set_cookie(self, request: Request, response: Response, key: str) -> None:
        """Give a browser the cookie, or with an empty one take it away."""
        response.set_cookie(
            _COOKIE,
            key,
            max_age=_SECONDS if key else 0,
            path=_path(request),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",  # the provider's redirect has to bring it
        )


def _is_answer(awaited: _Awaited, words: Mapping[str, str], now: float) -> bool:
    """Whether a provider answers to this sign-in, in time; some tell who they are."""
    same = hmac.compare_digest(words.get("state", "").encode(), awaited.sign_in.state.encode())
    issuer = issuer_url(awaited.sign_in.provider.issuer)
    return same and issuer_url(words.get("iss", issuer)) == issuer and now < awaited.until


def _path(request: Request) -> str:
    return f"{request.scope['root_path']}/sign-in"
