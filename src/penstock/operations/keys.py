"""The operations on API keys: they are seen without their secrets, and revoked.

Only the command line makes one: a key that somebody made with a stolen admin token would outlive that token.
"""

from __future__ import annotations

from typing import Any

from penstock.app import Backend
from penstock.errors import DataError
from penstock.operations.operation import Given, Noun, Parameter, Refusal

noun = Noun("keys")


@noun.lists()
async def every(backend: Backend, _given: Given) -> Any:
    """Show API keys, by name. Nobody can show their secrets."""
    return {"keys": await backend.engine.store.api_keys.list()}


@noun.changes(
    Parameter("name", "name", needed=True),
    tells="{name} is revoked.",
    refusals={DataError: Refusal(404, "KeyNotFound")},
)
async def revoke(backend: Backend, given: Given) -> Any:
    """Revoke the API key NAME. All processes refuse it within a few seconds."""
    name = given["name"]
    if not await backend.engine.store.api_keys.revoke(name):
        raise DataError(f"There is no key {name!r}.", fix="Look at penstock keys.")
    return {"name": name, "revoked": True}
