"""The caller who sends a request, or talks over a web socket: by its token, its API key or the admin token."""

from __future__ import annotations

import hmac
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from pydantic_core import from_json
from starlette.requests import HTTPConnection

from penstock.api.identity.tokens import Tokens, Verified
from penstock.dataclass import dataclass
from penstock.errors import Unauthenticated
from penstock.identity.api_key import PREFIX
from penstock.identity.caller import Caller, RequestInfo
from penstock.identity.claims import identity_of_fields

_LONGEST_AGENT = 500  # characters


@dataclass(slots=True)
class Credentials:
    """A caller, with the token that it has brought, if any; or with the error for which its token was refused."""

    caller: Caller
    token: str = field(default="", repr=False)
    verified: Verified | None = None
    refusal: Unauthenticated | None = None
    is_admin: bool = False  # whether it has brought the admin token; it may act as a user

    async def check(self, tokens: Tokens) -> None:
        """Check that the token still holds.

        Raises:
            Unauthenticated: It has expired, or was revoked.
        """
        if self.refusal is not None:
            raise self.refusal
        if self.verified is not None and not tokens.holds(self.verified):
            self.verified = await tokens.verify(self.token)


def anonymous(connection: HTTPConnection, request_id: str = "") -> Credentials:
    """Nobody known, with the request that the connection began with."""
    client = connection.scope.get("client")
    address = client[0] if client else ""
    agent = connection.headers.get("user-agent", "")[:_LONGEST_AGENT]
    return Credentials(Caller(request=RequestInfo(address, agent, request_id)))


async def credentials_of(connection: HTTPConnection, tokens: Tokens, admin_token: str, request_id: str) -> Credentials:
    """The caller that the header ``authorization`` names. Schemes other than Bearer and Convex are not for us.

    Raises:
        Unauthenticated: The token is wrong.
        ProviderUnavailable: It cannot be verified now.
    """
    authorization = connection.headers.get("authorization", "")
    if not authorization:
        return anonymous(connection, request_id)
    scheme, _, given = authorization.partition(" ")
    if scheme.startswith(PREFIX) or scheme.count(".") == 2:  # noqa: PLR2004 - a JSON Web Token has three parts
        raise Unauthenticated(
            "The header authorization has a token without a scheme.",
            fix="Write authorization: Bearer TOKEN.",
            reason="InvalidAuthHeader",
        )
    nobody, raw, scheme = anonymous(connection, request_id), given.encode("latin-1"), scheme.lower()
    if scheme == "convex" or (scheme == "bearer" and is_admin(raw, admin_token)):
        return as_admin(nobody, raw, admin_token)
    return await with_token(nobody, given.strip(), tokens) if scheme == "bearer" and given else nobody


async def with_token(nobody: Credentials, token: str, tokens: Tokens) -> Credentials:
    """A caller with a token of its own. Raises as `credentials_of` does."""
    verified = await tokens.verify(token)
    return Credentials(replace(nobody.caller, identity=verified.identity), token, verified)


def as_admin(nobody: Credentials, given: bytes, admin_token: str, user: Mapping[str, Any] | None = None) -> Credentials:
    """An administrator, who is the system; or the user that he acts as, whom a suffix of the token may name as well.

    Raises:
        Unauthenticated: It is not the admin token, or the user has no name.
    """
    if not is_admin(given, admin_token):
        given, _, acting_as = given.rpartition(b":")
        if not is_admin(given, admin_token):
            raise Unauthenticated("The admin token is wrong.", fix="It is the setting admin_token of this server.")
        try:
            user = from_json(b64decode(acting_as, validate=True))
        except ValueError:
            user = {}
        user = user if isinstance(user, dict) else {}
    if user is None:
        return Credentials(replace(nobody.caller, is_system=True), is_admin=True)
    return Credentials(replace(nobody.caller, identity=identity_of_fields(user)), is_admin=True)


def is_admin(given: bytes, admin_token: str) -> bool:
    """Whether this is the admin token. Compares in constant time."""
    wanted = admin_token.encode("utf-8", "surrogateescape")  # as it stood in the environment, whatever bytes that were
    return bool(admin_token) and hmac.compare_digest(given, wanted)
