"""Tokens of files: signed permissions to upload one, or to read one until a time. Nothing is stored of them."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from penstock.dataclass import dataclass
from penstock.errors import TokenExpired, TokenInvalid

Purpose = Literal["upload", "read"]

_LONGEST = 4000


@dataclass(frozen=True, slots=True)
class FileToken:
    """A permission."""

    purpose: Purpose
    expires_at: datetime  # of whole seconds
    file: str | None = None  # the id of the file to read
    max_bytes: int | None = None  # of the file to upload
    once: str | None = None  # names the token, if it may be used once
    creator: str | None = None  # the caller who asked for it
    component: str = ""  # whose the file will be; empty for the program


def sign(token: FileToken, secret: str) -> str:
    """The text of a token: its facts, and their signature."""
    facts = [token.purpose, int(token.expires_at.timestamp()), token.file, token.max_bytes, token.once, token.creator]
    facts += [token.component] if token.component else []  # which older releases do not read
    body = urlsafe_b64encode(json.dumps(facts, separators=(",", ":")).encode()).decode().rstrip("=")
    return f"{body}.{_signature(body, secret)}"


def read_token(text: str, purpose: Purpose, secret: str, now: datetime) -> FileToken:
    """The permission that a text gives.

    Raises:
        TokenInvalid: It was not signed here, or for another purpose.
        TokenExpired: Its time is over.
    """
    body, _, signature = text[:_LONGEST].partition(".")
    if not hmac.compare_digest(signature.encode(), _signature(body, secret).encode()):
        raise _not_known()
    facts = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))  # which was signed here
    token = FileToken(*facts)
    token = replace(token, expires_at=datetime.fromtimestamp(facts[1], UTC))
    if token.purpose != purpose:
        raise _not_known()
    if token.expires_at <= now:
        raise TokenExpired("The time of this token is over.", fix="Ask for another URL.")
    return token


def _signature(body: str, secret: str) -> str:
    digest = hmac.digest(secret.encode(), body.encode("utf-8", "replace"), hashlib.sha256)
    return urlsafe_b64encode(digest).decode().rstrip("=")


def _not_known() -> TokenInvalid:
    return TokenInvalid("This is no token of this program.", fix="Ask for another URL.")
