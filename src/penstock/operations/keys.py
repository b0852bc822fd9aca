"""What can be done to API keys: they are seen without their secrets, and revoked.

Only the command line makes one: a key that somebody made with a stolen admin token would outlive that token.
"""

from __future__ import annotations

from typing import Any

from penstock.app import Backend
from penstock.errors import DataError
from penstock.operations.operation import Given, Operation, Parameter, Refusal


async def _list(backend: Backend, _given: Given) -> Any:
    return {"keys": await backend.engine.store.api_keys.list()}


async def _revoke(backend: Backend, given: Given) -> Any:
    name = given["name"]
    if not await backend.engine.store.api_keys.revoke(name):
        raise DataError(f"There is no key {name!r}.", fix="Look at penstock keys.")
    return {"name": name, "revoked": True}


LIST = Operation("keys", "", "Show API keys, by name. Nobody can show their secrets.", _list)
REVOKE = Operation(
    "keys",
    "revoke",
    "Revoke the API key NAME. All processes refuse it within a few seconds.",
    _revoke,
    (Parameter("name", needed=True),),
    changes=True,
    tells="{name} is revoked.",
    refusals={DataError: Refusal(404, "KeyNotFound")},
)

OPERATIONS = (LIST, REVOKE)
