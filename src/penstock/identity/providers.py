"""The providers of identities, as an app declares them: who issues tokens, and which tokens are for this app."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from urllib.parse import unquote_to_bytes, urlsplit

from penstock.errors import DeclarationError

_OfKeys = Literal["RS256", "ES256", "EdDSA"]
Algorithm = Literal[_OfKeys, "HS256"]
ALGORITHMS: tuple[_OfKeys, ...] = get_args(_OfKeys)
SHARED = "shared"  # the id of the key that a shared secret is
_SHORTEST = 32  # bytes of a secret, as many as HS256's hash has (RFC 7518)
_KEYS = (b"-----BEGIN", b"ssh-", b"ecdsa-")  # with a public key as the secret, everybody could issue tokens

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
    dashboard_client_id: str = field(default="", repr=False)
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
    def summary(self) -> str:
        return f"OIDC(domain={self.domain}, app_id={self.application_id})"

    @property
    def keys_url(self) -> str:
        """The address of its keys, or of the document that names it."""
        return f"{issuer_url(self.domain)}/.well-known/openid-configuration"

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        return ALGORITHMS


@dataclass(frozen=True, slots=True)
class CustomJWT:
    """Any issuer of JSON Web Tokens, your own program for example. It has keys, or a secret that it shares with you.

    Args:
        issuer: The claim ``iss`` of its tokens.
        jwks: The address of its keys, a JSON Web Key Set; or the set itself, as a ``data:`` URL.
        algorithm: How its tokens are signed: with keys ``"RS256"``, ``"ES256"`` or ``"EdDSA"``, with a secret
            ``"HS256"``. What the header of a token says does not count.
        application_id: The audience of its tokens. Without it, the audience of tokens is not looked at.
        secret: The shared secret, of 32 bytes or more, in place of `jwks`. Its holders can issue tokens, too.

    Raises:
        DeclarationError: It has both keys and a secret, or neither. The algorithm does not fit, the secret is short, or
            the address is no ``https://`` or ``data:`` address. ``http://`` is allowed for this machine.
    """

    issuer: str
    jwks: str = field(default="", repr=False)  # as a data: URL it would fill the screen
    algorithm: Algorithm = "HS256"
    application_id: str | None = None
    secret: str | bytes = field(default="", repr=False)

    def __post_init__(self) -> None:
        if bool(self.jwks) == bool(self.secret):
            raise DeclarationError(
                f"CustomJWT: {self.issuer!r} has {'both' if self.jwks else 'neither'} jwks and secret.",
                fix="Write jwks= for public keys, or secret= for a shared secret.",
            )
        fitting = ("HS256",) if self.secret else ALGORITHMS
        if self.algorithm not in fitting:
            raise DeclarationError(
                f"CustomJWT: the algorithm of {self.issuer!r} does not fit its {'secret' if self.secret else 'jwks'}.",
                fix=f"Write algorithm= with one of {', '.join(fitting)}.",
            )
        if self.secret:
            self._check_secret()
        elif self.jwks.startswith("data:"):
            key_set_in(self.jwks)
        else:
            _check("CustomJWT", "jwks", self.jwks)

    def _check_secret(self) -> None:
        key: Any = self.secret.encode() if isinstance(self.secret, str) else self.secret
        if not isinstance(key, bytes) or len(key) < _SHORTEST or key.lstrip().startswith(_KEYS):
            raise DeclarationError(
                f"CustomJWT: the secret of {self.issuer!r} is no text or bytes of {_SHORTEST} bytes or more.",
                fix="A public key is none. Make one with python -c 'import secrets; print(secrets.token_urlsafe(32))'.",
            )

    @property
    def summary(self) -> str:
        return f"CustomJWT(issuer={self.issuer}, app_id={self.application_id or 'none'})"

    @property
    def keys_url(self) -> str:
        if not self.secret:
            return self.jwks
        secret = self.secret.encode() if isinstance(self.secret, str) else self.secret
        text = base64.urlsafe_b64encode(secret).decode().rstrip("=")
        return "data:," + json.dumps({"keys": [{"kty": "oct", "k": text, "kid": SHARED, "alg": "HS256"}]})

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        return (self.algorithm,)


@dataclass(frozen=True, slots=True)
class OwnJWT:
    """This program itself: tokens that `ctx.auth.sign_jwt` has signed. They are verified without any network call.

    Their issuer is the setting ``public_url``. Each needs a ``sub``, which names the user.

    Args:
        application_id: The audience of its tokens. Without it, the audience of tokens is not looked at, so that
            tokens which the program signs for others sign in here as well.
    """

    application_id: str | None = None


WithKeys = OIDC | CustomJWT  # whose keys are at an address
Provider = WithKeys | OwnJWT


def providers_of(given: Any) -> tuple[Provider, ...]:
    """The providers that an app names, all of them; `DeclarationError` if these are none."""
    found = (None,) if isinstance(given, Provider) else tuple(given)
    if not all(isinstance(one, Provider) for one in found):
        raise DeclarationError("App(auth=…) is no list of providers.", fix="Write auth=[OIDC(…)].")
    return found


def dashboard_providers(providers: Iterable[Provider]) -> tuple[OIDC, ...]:
    """Choose the providers that have a client for the dashboard."""
    return tuple(one for one in providers if isinstance(one, OIDC) and one.dashboard_client_id)


def issuer_url(issuer: str) -> str:
    """An issuer in the one form in which issuers are compared: with a scheme, and without a slash at the end."""
    return (issuer if "://" in issuer else f"https://{issuer}").rstrip("/")


def is_safe(url: str, *, named_by: str | None = None) -> bool:
    """Whether keys may be fetched from an address: over TLS, or from this machine.

    Args:
        url: The address.
        named_by: The address that has named it: one elsewhere names none of this machine.
    """
    try:
        parts = urlsplit(url)
        scheme, host = parts.scheme, parts.hostname
    except ValueError:
        return False
    if "@" in parts.netloc:  # a password there would be told with the address
        return False
    if host in _LOCAL:
        return scheme in {"http", "https"} and (named_by is None or urlsplit(named_by).hostname in _LOCAL)
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
        scheme, slashes, rest = url.partition("?")[0].rpartition("://")
        shown = f"{scheme}{slashes}{rest.rpartition('@')[2]}"  # without what may be secret in it
        raise DeclarationError(
            f"{kind}: {name} is {shown!r}, which is no https:// address without a password.",
            fix="Over http:// anybody on the way could issue tokens; it is allowed for localhost only.",
        )
