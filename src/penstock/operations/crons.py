"""The operations on crons: see `app.crons` for what each verb does."""

from __future__ import annotations

from typing import Any

from penstock.app import Backend
from penstock.errors import DataError, UsageError
from penstock.operations.operation import BY_NAME, Given, Noun, Parameter, Refusal, select

noun = Noun("crons")
_CRON = Parameter("cron", "name", needed=True)
_UNKNOWN = Refusal(404, "CronNotFound")


class CronUnknown(DataError):
    """The database knows no such cron."""


@noun.lists(*BY_NAME)
async def every(backend: Backend, given: Given) -> Any:
    """Show crons by name: when each is due next, and how its last run ended."""
    return {"crons": select(await backend.app.crons.list(backend), given)}


@noun.changes(_CRON, tells="{job}", refusals={CronUnknown: _UNKNOWN, DataError: Refusal(409, "NotRunnable")})
async def run(backend: Backend, given: Given) -> Any:
    """Run a cron now and print the job's id. Refused while a run is in progress."""
    name, crons = given["cron"], backend.app.crons
    try:
        return {"cron": name, "job": await crons.run(backend, name)}
    except DataError as error:
        if name in {one.name for one in await crons.list(backend)}:
            raise
        raise CronUnknown(error.what, fix=error.fix) from error


_PAUSED = "{cron} is paused. A current run continues; no other one starts."


@noun.changes(_CRON, tells=_PAUSED, refusals={DataError: _UNKNOWN})
async def pause(backend: Backend, given: Given) -> Any:
    """Pause a cron on all machines."""
    await backend.app.crons.pause(backend, given["cron"])
    return {"cron": given["cron"], "paused": True}


@noun.changes(_CRON, tells="{cron} runs again.", refusals={DataError: _UNKNOWN})
async def resume(backend: Backend, given: Given) -> Any:
    """Resume a paused cron, from its next planned time."""
    await backend.app.crons.resume(backend, given["cron"])
    return {"cron": given["cron"], "paused": False}


def _tell_of_removal(given: Given, found: Any) -> str:
    cron = given["cron"]
    return f"{cron} is removed." if found["removed"] else f"The database knows no cron {cron!r}."


@noun.changes(_CRON, tells=_tell_of_removal, refusals={UsageError: Refusal(409, "NotRemovable")})
async def remove(backend: Backend, given: Given) -> Any:
    """Remove a cron that was created at run time, or that no program declares."""
    return {"cron": given["cron"], "removed": await backend.app.crons.remove(backend, given["cron"])}
