"""Tokens of files: signed permissions to upload one, or to read one until a time. Nothing is stored of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import jwt

from penstock.errors import TokenExpired, TokenInvalid

Purpose = Literal["upload", "read"]

_ALGORITHM = "HS256"
_LONGEST = 2000
_LEFT = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}  # the clock of penstock decides


@dataclass(frozen=True, slots=True)
class FileToken:
    """A permission."""

    purpose: Purpose
    expires_at: datetime  # of whole seconds
    file: str | None = None  # the id of the file to read
    max_bytes: int | None = None  # of the file to upload
    once: str | None = None  # names the token, if it may be used once
    creator: str | None = None  # the caller who asked for it


def sign(token: FileToken, secret: str) -> str:
    """The text of a token."""
    claims = {
        "aud": token.purpose,
        "exp": int(token.expires_at.timestamp()),
        "sub": token.file,
        "max": token.max_bytes,
        "jti": token.once,
        "cre": token.creator,
    }
    return jwt.encode({name: value for name, value in claims.items() if value is not None}, secret, _ALGORITHM)


def read_token(text: str, purpose: Purpose, secret: str, now: datetime) -> FileToken:
    """The permission that a text gives.

    Raises:
        TokenInvalid: It was not signed here, or for another purpose.
        TokenExpired: Its time is over.
    """
    try:
        options: Any = {**_LEFT, "require": ["exp", "aud"]}
        claims = jwt.decode(text[:_LONGEST], secret, [_ALGORITHM], audience=purpose, options=options)
        expires_at = datetime.fromtimestamp(claims["exp"], UTC)
    except (jwt.InvalidTokenError, TypeError, ValueError, OverflowError) as error:
        raise TokenInvalid("This is no token of this program.", fix="Ask for another URL.") from error
    if expires_at <= now:
        raise TokenExpired("The time of this token is over.", fix="Ask for another URL.")
    return FileToken(purpose, expires_at, claims.get("sub"), claims.get("max"), claims.get("jti"), claims.get("cre"))
