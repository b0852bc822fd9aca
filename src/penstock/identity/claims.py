"""The identity that the claims of a token say: the standard ones as fields, the others as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from penstock.errors import Unauthenticated
from penstock.identity.identity import Identity

_FLAGS = ("email_verified", "phone_number_verified")
_RENAMED = {
    "profile": "profile_url", "picture": "picture_url", "website": "website_url", "birthdate": "birthday",
    "zoneinfo": "timezone", "locale": "language",
}  # fmt: skip
_OTHERS = {"subject", "issuer", "claims", *_FLAGS, *_RENAMED.values()}
_TEXTS = {name: name for name in Identity.model_fields if name not in _OTHERS} | _RENAMED
_OF_THE_TOKEN = {
    "iss", "sub", "aud", "exp", "nbf", "iat", "jti", "auth_time", "nonce", "at_hash", "c_hash", "s_hash",
}  # fmt: skip
_SPELLED = {"true": True, "false": False}  # as some providers write them


def identity_of(claims: Mapping[str, Any], *, flat: bool) -> Identity:
    """The identity of the claims of a token that was verified.

    Args:
        claims: The claims.
        flat: Whether claims within claims are named ``outer.inner``.
    """
    fields: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in claims.items():
        if name in _OF_THE_TOKEN:
            continue
        if name in _FLAGS and isinstance(flag := _SPELLED.get(value, value) if isinstance(value, str) else value, bool):
            fields[name] = flag
        elif name in _TEXTS and isinstance(text := _text(name, value), str):
            fields[_TEXTS[name]] = text
        else:
            others.update(_flatten(name, value) if flat else [(name, value)])
    return Identity(subject=claims["sub"], issuer=claims["iss"], claims=others, **fields)


def identity_of_fields(given: Any) -> Identity:
    """The identity that an administrator names, by its fields as they are on the wire.

    Raises:
        Unauthenticated: It has no subject and issuer, and no token identifier; or a field is of another type.
    """
    fields: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    issuer, _, subject = str(fields.get("tokenIdentifier", "")).partition("|")
    try:
        identity = Identity.model_validate({"issuer": issuer, "subject": subject, **fields})
    except ValidationError:
        identity = None
    if identity is None or not (identity.issuer and identity.subject):
        raise Unauthenticated("The user to act as is no identity.", fix="Name its issuer and subject.")
    return identity


def _text(name: str, value: Any) -> Any:
    if name == "updated_at" and type(value) is int and abs(value) < 2**35:
        return datetime.fromtimestamp(value, UTC).isoformat().replace("+00:00", "Z")
    if name == "address" and isinstance(value, dict):
        return value.get("formatted")
    return value


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for inner, one in value.items():
        yield from _flatten(f"{name}.{inner}", one)
