"""What can be done to crons: see `app.crons` for what each verb does."""

from __future__ import annotations

from typing import Any

from penstock.app import Backend
from penstock.errors import DataError, UsageError
from penstock.operations.operation import Given, Operation, Parameter, Refusal

_CRON = (Parameter("cron", needed=True),)
_UNKNOWN = Refusal(404, "CronNotFound")


class CronUnknown(DataError):
    """The database knows no such cron."""


async def _list(backend: Backend, _given: Given) -> Any:
    return {"crons": await backend.app.crons.list(backend)}


async def _run(backend: Backend, given: Given) -> Any:
    name, crons = given["cron"], backend.app.crons
    try:
        return {"cron": name, "job": await crons.run(backend, name)}
    except DataError as error:
        if name in {one.name for one in await crons.list(backend)}:
            raise
        raise CronUnknown(error.what, fix=error.fix) from error


async def _pause(backend: Backend, given: Given) -> Any:
    await backend.app.crons.pause(backend, given["cron"])
    return {"cron": given["cron"], "paused": True}


async def _resume(backend: Backend, given: Given) -> Any:
    await backend.app.crons.resume(backend, given["cron"])
    return {"cron": given["cron"], "paused": False}


async def _remove(backend: Backend, given: Given) -> Any:
    return {"cron": given["cron"], "removed": await backend.app.crons.remove(backend, given["cron"])}


def _removed(given: Given, found: Any) -> str:
    cron = given["cron"]
    return f"{cron} is removed." if found["removed"] else f"The database knows no cron {cron!r}."


LIST = Operation("crons", "", "Show all crons: when each is due next, and how its last run ended.", _list)
RUN = Operation(
    "crons",
    "run",
    "Run a cron now and print the job's id. Refused while a run is in progress.",
    _run,
    _CRON,
    changes=True,
    tells="{job}",
    refusals={CronUnknown: _UNKNOWN, DataError: Refusal(409, "NotRunnable")},
)
PAUSE = Operation(
    "crons",
    "pause",
    "Pause a cron on all machines.",
    _pause,
    _CRON,
    changes=True,
    tells="{cron} is paused. A current run continues; no other one starts.",
    refusals={DataError: _UNKNOWN},
)
RESUME = Operation(
    "crons",
    "resume",
    "Resume a paused cron, from its next planned time.",
    _resume,
    _CRON,
    changes=True,
    tells="{cron} runs again.",
    refusals={DataError: _UNKNOWN},
)
REMOVE = Operation(
    "crons",
    "remove",
    "Remove a cron that was created at run time, or that no program declares.",
    _remove,
    _CRON,
    changes=True,
    tells=_removed,
    refusals={UsageError: Refusal(409, "NotRemovable")},
)

OPERATIONS = (LIST, RUN, PAUSE, RESUME, REMOVE)
