"""The operations on keys, which are seen without their secrets: API keys are revoked, keys that sign tokens rotate.

Only the command line makes an API key: one that somebody made with a stolen admin token would outlive that token.
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


@noun.shows(answers=lambda found: {"keys": [{"id": one.id, "created_at": one.created_at} for one in found]})
async def signing(backend: Backend, _given: Given) -> Any:
    """Show the keys of tokens that the program signs, the newest first: it signs, and the others still verify."""
    return await backend.engine.signing.read(again=True)


@noun.changes(
    Parameter("at_once", "flag", "Older keys verify nothing any more, as after a theft; by default two hours long."),
    tells="Tokens are signed with the new key {id}, by all processes within a minute.",
)
async def rotate(backend: Backend, given: Given) -> Any:
    """Make a new key for tokens that the program signs. Tokens of older keys hold until they expire."""
    signing, at_once = backend.engine.signing, bool(given.get("at_once"))
    made = await backend.runner.write(lambda transaction: signing.rotate(transaction, at_once=at_once))
    return {"id": made.id}
