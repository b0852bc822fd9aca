"""Signs people in at a provider by redirect: OpenID Connect's authorization code flow, with PKCE.

Owns what is sent to the provider. Leaves the check of its ID token to `tokens`, and cookies to the dashboard.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import field
from hashlib import sha256
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote_plus, urlencode

from penstock.api.identity.keys import KeySet, fetch_json
from penstock.calls.run.threads import Threads
from penstock.clock import secret
from penstock.dataclass import dataclass
from penstock.errors import AccessDenied, ProviderUnavailable
from penstock.identity.providers import OIDC, Provider

_PATIENCE = 10.0  # seconds
_THREADS = 4  # of their own, so that no flood of wrong codes holds up the keys of providers


@dataclass(frozen=True, slots=True)
class SignIn:
    """Somebody who was sent to a provider."""

    provider: OIDC  # the provider, which has a client for the dashboard
    redirect_uri: str  # where it sends them back to
    state: str = field(default_factory=secret, repr=False)  # what it has to send back with them
    nonce: str = field(default_factory=secret, repr=False)  # what its ID token has to contain
    # what proves to it that who redeems the code has sent them
    verifier: str = field(default_factory=secret, repr=False)


class Codes:
    """Asks providers for codes, and redeems these."""

    def __init__(self, key_sets: Sequence[KeySet]) -> None:
        self._key_sets: Mapping[Provider, KeySet] = {one.provider: one for one in key_sets}
        self._threads = Threads("penstock-sign-in", _THREADS)

    async def url(self, sign_in: SignIn) -> str:
        """The address to send somebody to. Raises `ProviderUnavailable` if the provider does not say."""
        where = await self._key_sets[sign_in.provider].endpoint("authorization_endpoint")
        challenge = base64.urlsafe_b64encode(sha256(sign_in.verifier.encode()).digest()).decode().rstrip("=")
        words = {
            "response_type": "code",
            "client_id": sign_in.provider.dashboard_client_id,
            "redirect_uri": sign_in.redirect_uri,
            "scope": "openid profile",
            "state": sign_in.state,
            "nonce": sign_in.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return f"{where}{'&' if '?' in where else '?'}{urlencode(words)}"

    async def redeem(self, sign_in: SignIn, code: str) -> str:
        """The ID token for a code, not yet verified. Raises as `Tokens.redeem` does."""
        keys, provider = self._key_sets[sign_in.provider], sign_in.provider
        url = await keys.endpoint("token_endpoint")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": sign_in.redirect_uri,
            "client_id": provider.dashboard_client_id,
            "code_verifier": sign_in.verifier,
        }
        authorization = ""
        if provider.dashboard_client_secret:
            pair = f"{quote_plus(provider.dashboard_client_id)}:{quote_plus(provider.dashboard_client_secret)}"
            authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
        try:
            async with asyncio.timeout(_PATIENCE), self._threads.place(provider.issuer) as place:
                found: Any = await place.run(lambda: fetch_json(url, urlencode(form).encode(), authorization))
            return str(found["id_token"])
        except HTTPError as error:
            raise AccessDenied(f"{provider.issuer} has refused the sign-in, with status {error.code}.") from error
        except (OSError, HTTPException, ValueError, TypeError, LookupError) as error:
            raise ProviderUnavailable(f"{provider.issuer} cannot be asked who has signed in.") from error

    def close(self) -> None:
        """End the threads."""
        self._threads.close()
