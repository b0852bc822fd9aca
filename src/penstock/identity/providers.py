"""The providers of identities, as an app declares them: who issues tokens, and which tokens are for this app."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from urllib.parse import unquote_to_bytes, urlsplit

from penstock.errors import DeclarationError

Algorithm = Literal["RS256", "ES256", "EdDSA"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

_LOCAL = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True, slots=True)
class OIDC:
    """A provider that speaks OpenID Connect, such as Auth0, Clerk, Keycloak or WorkOS.

    Its keys are found at ``domain/.well-known/openid-configuration``. Tokens are signed with RS256, ES256 or EdDSA.

    Args:
        domain: Its address, which is also the issuer of its tokens.
        application_id: The application that its tokens have to be for: their audience.
        dashboard_client_id: The client at the provider with which people sign in to the dashboard. Without it, the
            dashboard shows no button for the provider.
        dashboard_client_secret: The secret of that client, if it has one.

    Raises:
        DeclarationError: The address is no ``https://`` address. ``http://`` is allowed for this machine.
    """

    domain: str
    application_id: str
    dashboard_client_id: str = ""
    dashboard_client_secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        _check("OIDC", "domain", issuer_url(self.domain))
        if not self.application_id:
            raise DeclarationError(
                "OIDC: application_id is empty.", fix="Without it, tokens for other applications would be taken."
            )

    @property
    def issuer(self) -> str:
        return self.domain

    @property
    def keys_url(self) -> str:
        """Where its keys, or the address of its keys, are found."""
        return f"{issuer_url(self.domain)}/.well-known/openid-configuration"

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        return ALGORITHMS


@dataclass(frozen=True, slots=True)
class CustomJWT:
    """Any issuer of JSON Web Tokens, your own program for example.

    Args:
        issuer: The claim ``iss`` of its tokens.
        jwks: The address of its keys, a JSON Web Key Set; or the set itself, as a ``data:`` URL.
        algorithm: How its tokens are signed: ``"RS256"``, ``"ES256"`` or ``"EdDSA"``.
        application_id: The audience of its tokens. Without it, the audience of tokens is not looked at.

    Raises:
        DeclarationError: There is no such algorithm, or the address is no ``https://`` or ``data:`` address. ``http://``
            is allowed for this machine.
    """

    issuer: str
    jwks: str = field(repr=False)  # as a data: URL it would fill the screen
    algorithm: Algorithm
    application_id: str | None = None

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise DeclarationError(
                f"CustomJWT: there is no algorithm {self.algorithm!r}.", fix=f"Write one of {', '.join(ALGORITHMS)}."
            )
        if self.jwks.startswith("data:"):
            key_set_in(self.jwks)
        else:
            _check("CustomJWT", "jwks", self.jwks)

    @property
    def keys_url(self) -> str:
        return self.jwks

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        return (self.algorithm,)


Provider = OIDC | CustomJWT


def providers_of(given: Any) -> tuple[Provider, ...]:
    """The providers that an app names, all of them; `DeclarationError` if these are none."""
    found = (None,) if isinstance(given, Provider) else tuple(given)
    if not all(isinstance(one, Provider) for one in found):
        raise DeclarationError(f"App(auth={given!r}) is no list of providers.", fix="Write auth=[OIDC(…)].")
    return found


def dashboard_providers(providers: Iterable[Provider]) -> tuple[OIDC, ...]:
    """Those that have a client for the dashboard."""
    return tuple(one for one in providers if isinstance(one, OIDC) and one.dashboard_client_id)


def issuer_url(issuer: str) -> str:
    """An issuer in the one form in which issuers are compared: with a scheme, and without a slash at the end."""
    return (issuer if "://" in issuer else f"https://{issuer}").rstrip("/")


def is_safe(url: str, *, beside: str | None = None) -> bool:
    """Whether keys may be fetched from an address: over TLS, or from this machine.

    Args:
        url: The address.
        beside: The address that has named it: one elsewhere names none of this machine.
    """
    try:
        scheme, host = urlsplit(url).scheme, urlsplit(url).hostname
    except ValueError:
        return False
    if host in _LOCAL:
        return scheme in {"http", "https"} and (beside is None or urlsplit(beside).hostname in _LOCAL)
    return scheme == "https" and bool(host)


def key_set_in(url: str) -> Any:
    """The JSON Web Key Set that a ``data:`` URL is made of.

    Raises:
        DeclarationError: It is none.
    """
    head, _, data = url.partition(",")
    content = unquote_to_bytes(data)
    try:
        found = json.loads(base64.b64decode(content, validate=True) if head.endswith(";base64") else content)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("keys"), list):
        raise DeclarationError(
            "CustomJWT: jwks is a data: URL without a key set.", fix="Write data:application/json;base64,… ."
        )
    return found


def _check(kind: str, name: str, url: str) -> None:
    if not is_safe(url):
        raise DeclarationError(
            f"{kind}: {name} is {url!r}, which is no https:// address.",
            fix="Over http:// anybody on the way could issue tokens; it is allowed for localhost only.",
        )
