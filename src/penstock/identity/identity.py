"""The identity of a caller: the claims of a token that a provider has verified."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, computed_field
from pydantic.alias_generators import to_camel

_absent = Field(exclude_if=lambda claim: not claim and claim is not False)  # as Convex's clients expect
_Text = Annotated[str | None, _absent]
_Flag = Annotated[bool | None, _absent]


class Identity(BaseModel):
    """The identity of a caller, as a provider's token says. Its names on the wire are those of Convex, in camelCase.

    On the wire it has only the claims that the token has.

    Attributes:
        subject: The caller's name at the issuer; it never changes.
        issuer: The provider that has issued the token.
        token_identifier: Issuer and subject, which together name one caller: use it as a key of your users.
        claims: The other claims of the token. Those about the token itself, such as its expiry, are left out.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)

    subject: str
    issuer: str
    name: _Text = None
    given_name: _Text = None
    family_name: _Text = None
    nickname: _Text = None
    preferred_username: _Text = None
    profile_url: _Text = None
    picture_url: _Text = None
    website_url: _Text = None
    email: _Text = None
    email_verified: _Flag = None
    gender: _Text = None
    birthday: _Text = None
    timezone: _Text = None
    language: _Text = None
    phone_number: _Text = None
    phone_number_verified: _Flag = None
    address: _Text = None
    updated_at: _Text = None
    claims: Annotated[Mapping[str, Any], _absent] = Field(default_factory=dict)

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own spelling
    @property
    def token_identifier(self) -> str:
        return f"{self.issuer}|{self.subject}"

    @cached_property
    def key(self) -> str:
        """A text that is equal for equal identities."""
        return json.dumps(self.model_dump(exclude_none=True), sort_keys=True, default=str)
