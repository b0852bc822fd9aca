"""The identity of a caller: the claims of a token that a provider has verified."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, computed_field
from pydantic.alias_generators import to_camel


class Identity(BaseModel):
    """The identity of a caller, as a provider's token says. Its names on the wire are those of Convex, in camelCase.

    Attributes:
        subject: The caller's name at the issuer; it never changes.
        issuer: The provider that has issued the token.
        token_identifier: Issuer and subject, which together name one caller: use it as a key of your users.
        claims: The other claims of the token. Those about the token itself, such as its expiry, are left out.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)

    subject: str
    issuer: str
    name: str | None = None
    given_name: str | None = None
    family_name: str | None = None
    nickname: str | None = None
    preferred_username: str | None = None
    profile_url: str | None = None
    picture_url: str | None = None
    website_url: str | None = None
    email: str | None = None
    email_verified: bool | None = None
    gender: str | None = None
    birthday: str | None = None
    timezone: str | None = None
    language: str | None = None
    phone_number: str | None = None
    phone_number_verified: bool | None = None
    address: str | None = None
    updated_at: str | None = None
    claims: Mapping[str, Any] = Field(default_factory=dict)

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own spelling
    @property
    def token_identifier(self) -> str:
        return f"{self.issuer}|{self.subject}"

    @cached_property
    def key(self) -> str:
        """A text that is equal for equal identities."""
        return json.dumps(self.model_dump(exclude_none=True), sort_keys=True, default=str)
