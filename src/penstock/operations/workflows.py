"""The operations on runs of workflows: they are seen with their steps, told events, and exported.

A run is a job, so what can be done to any job is done there; here is what only a run has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.app import Backend
from penstock.calls.workflows.events import Address
from penstock.calls.workflows.manage import check_retriable, end_now, look_back, retry_from
from penstock.calls.workflows.manage import fork as begin_fork
from penstock.dataclass import dataclass
from penstock.errors import DataError, ValueInvalid
from penstock.functions.function import WorkflowFunction
from penstock.functions.signature import encoder_of
from penstock.jobs.filter import JobFilter
from penstock.jobs.job import JobId, JobStatus, job_uuid
from penstock.jobs.states import FINISHED
from penstock.observe.readable import amount
from penstock.operations import jobs
from penstock.operations.jobs import TIMES
from penstock.operations.operation import Given, Noun, Parameter, Question, Refusal, Refusals
from penstock.store.nouns.jobs import ABOVE_ALL
from penstock.store.session import Session
from penstock.values import decode_json
from penstock.workflows.exported import write_history
from penstock.workflows.record import BEGINNING, Record, RecordKind
from penstock.workflows.waterfall import PARKED, WAITS, Reveal, RunStep, doing_of, steps_of

noun = Noun("workflows")
_EFFECTS = frozenset({RecordKind.MUTATION, RecordKind.ACTION, RecordKind.JOB})
STATES = {
    "waiting": {"state": "pending", "error": WAITS},
    "parked": {"state": "pending", "error": PARKED},
    **{state: {"state": state} for state in ("running", "success", "failed", "canceled")},
}


class EventUnknown(DataError):
    """The program declares no such event."""


class RunUnknown(DataError):
    """There is no such run."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run, as people look at it.

    Attributes:
        job: Its job.
        doing: One of `STATES`, or the state of its job.
        steps: Its steps and waits.
        events: The names of events that it has not received, in their order.
    """

    job: JobStatus
    doing: str
    steps: list[RunStep]
    events: list[str]


async def find_run(backend: Backend, run: str) -> Run:
    """Find a run with its steps: by its id, or the newest one of ``workflow#key``. Raises `RunUnknown`."""
    name, mark, key = run.partition("#")
    if mark:
        where = JobFilter(function=backend.app.registry.full_name(name), key=key)
        job = next(iter(await backend.jobs(None, 1, where=where)), None)
    else:
        job = await backend.job(JobId(run))
    records = [] if job is None else await backend.engine.store.workflows.read_history(job_uuid(job.id))
    if job is None or not (records or job.function in backend.app.registry.workflows):
        raise RunUnknown(f"There is no run {run}.", fix="Its status may have expired; see penstock workflows.")
    inbox = [] if job.state in FINISHED else await backend.engine.store.workflows.list_events(job_uuid(job.id))
    return Run(
        job, doing_of(job.state.value, job.error), steps_of(records, revealing(backend)), [one.name for one in inbox]
    )


def revealing(backend: Backend) -> Reveal:
    """Make what decrypts the outcomes of records, and masks the secrets in them."""
    decrypt, app = backend.engine.store.encryption.decrypt, backend.app

    def reveal(record: Record) -> Mapping[str, Any] | None:
        if record.outcome is None:
            return None
        outcome: dict[str, Any] = decode_json(decrypt(record.outcome))
        if record.number == BEGINNING:
            return {name: outcome[name] for name in outcome if name != "secret"}
        function, result = app.registry.find(record.function), outcome.get("result")
        if function is not None and "result" in outcome:
            outcome["result"] = function.signature.results.mask(result)
        elif record.kind is RecordKind.EVENT and result and (event := app.events.get(result["name"])):
            outcome["result"] = {"name": event.name, "payload": encoder_of(event.type).mask(result["payload"])}
        return outcome

    return reveal


_RUN = Parameter("run", needed=True)
_REFUSALS: Refusals = {RunUnknown: Refusal(404, "RunNotFound"), EventUnknown: Refusal(404, "EventNotFound")}


# ----- to see


def describe_list(found: list[tuple[JobStatus, str]]) -> dict[str, Any]:
    """Make JSON of a list of runs."""
    return {"runs": [{"doing": doing, **jobs.sayable(job)} for job, doing in found]}


@noun.lists(
    Parameter("state", "choice", "Only runs in this state.", choices=tuple(STATES)),
    Parameter("function", about="Only runs of this workflow; the module is optional."),
    Parameter("key", about="Only runs with this key."),
    *TIMES,
    Parameter("after", about="Only runs older than this one: the last of the list before.", metavar="RUN"),
    Parameter("limit", "page", "How many runs to list.", default=20, most=1_000),
    answers=describe_list,
)
async def every(backend: Backend, given: Given) -> list[tuple[JobStatus, str]]:
    """Show runs of this program's workflows, the newest first: of the jobs that ended, among the last 50,000."""
    registry, limit, name, after = backend.app.registry, given["limit"], given.get("function"), given.get("after")
    names = registry.workflows if name is None else [registry.full_name(name)]
    asked: dict[str, Any] = STATES.get(given.get("state") or "", {})
    where = replace(jobs.build_filter(backend, {**given, "state": None}), **asked)
    below = ABOVE_ALL if after is None else job_uuid(JobId(after))
    calls, now = backend.job_calls, backend.engine.clock.now()

    async def read(session: Session) -> list[JobStatus]:
        filters, store = [replace(where, function=one) for one in names], calls.store.jobs
        return [job for one in filters for job in await store.list_recent(session, one, limit, now, below)]

    newest = sorted(map(calls.mask, await calls.read(read)), key=lambda job: job.id, reverse=True)[:limit]
    return [(job, doing_of(job.state.value, job.error)) for job in newest]


def describe(found: Run) -> dict[str, Any]:
    """Make JSON of a run."""
    return {"doing": found.doing, **jobs.sayable(found.job), "steps": found.steps, "events": found.events}


@noun.shows(_RUN, answers=describe, refusals=_REFUSALS)
async def show(backend: Backend, given: Given) -> Run:
    """Show RUN: what it waits for, and its steps with their arguments, attempts and outcomes."""
    return await find_run(backend, given["run"])


@noun.shows(_RUN, refusals=_REFUSALS)
async def export(backend: Backend, given: Given) -> dict[str, Any]:
    """Print the history of RUN as JSON, without secrets. penstock.testing.replay runs today's code on it."""
    run = await find_run(backend, given["run"])
    records = await backend.engine.store.workflows.read_history(job_uuid(run.job.id))
    about = {"workflow": run.job.function, "run": run.job.id, "args": run.job.args, "state": run.job.state.value}
    return write_history(records, revealing(backend), **about)


@noun.shows()
async def patches(backend: Backend, _given: Given) -> dict[str, Any]:
    """Show the changes that ctx.patched names, and how many unfinished runs go without: their old branches."""
    return {"patches": await backend.engine.store.workflows.list_patches()}


# ----- to change


@noun.changes(
    _RUN,
    Parameter("event", "name", needed=True),
    Parameter("payload", "any text", "The payload as JSON.", metavar="JSON"),
    Parameter("key", about="Of several with the same key the run receives only the first."),
    tells="{event} is sent to {run}.",
    refusals={**_REFUSALS, DataError: Refusal(409, "RunEnded")},
)
async def send(backend: Backend, given: Given) -> dict[str, Any]:
    """Send EVENT to RUN, which receives it when it waits for it; WORKFLOW#KEY is the run that has this key."""
    event = backend.app.events.get(given["event"])
    if event is None:
        known = ", ".join(sorted(backend.app.events)) or "none"
        raise EventUnknown(f"The program declares no event {given['event']!r}.", fix=f"Declared are: {known}.")
    try:
        payload = event.decode(given.get("payload") or "null")
    except ValueError as error:
        raise ValueInvalid(f"The payload of {event.name} is not what its type says: {error}") from error
    await event.send(backend, _address_of(backend, given["run"]), payload, key=given.get("key"))
    return {"run": given["run"], "event": event.name, "sent": True}


def _address_of(backend: Backend, run: str) -> Address:
    """Read the address of a run: its id, or its workflow and its key."""
    name, mark, key = run.partition("#")
    if not mark:
        return JobId(run)
    function = backend.app.registry.find(backend.app.registry.full_name(name))
    if not isinstance(function, WorkflowFunction):
        raise RunUnknown(f"The program has no workflow {name!r}.")
    return function, key


@noun.changes(
    _RUN,
    Parameter("now", "flag", "End it without its code: nothing is cleaned up or undone."),
    tells=lambda _given, found: jobs.cancel.tell({}, found),
    answers=jobs.cancel.answers,
)
async def cancel(backend: Backend, given: Given) -> Mapping[str, Any]:
    """Ask for RUN to be canceled. Its body may clean up in steps, and its compensations run."""
    run = await find_run(backend, given["run"])
    if given.get("now"):
        await end_now(backend.job_calls, run.job.id)
    found: Mapping[str, Any] = await jobs.cancel.run(backend, {"job": [run.job.id]})
    return found


async def _ask_to_go_back(backend: Backend, given: Given) -> Question:
    """Name the effects that may repeat if a run goes on from a step."""
    run = await find_run(backend, given["run"])
    _, others = await look_back(backend.job_calls, run.job.id, given.get("step"))
    effects = [one for one in others if one.outcome is not None and one.kind in _EFFECTS]
    listed = "; ".join(f"{one.number}: {one}" for one in sorted(effects, key=lambda one: one.number))
    text = f"Go on with {run.job.id} from an earlier step?"
    return Question(text, f"These steps have ended, and run again: {listed}." if effects else "No effect repeats.")


async def _ask_to_retry(backend: Backend, given: Given) -> Question:
    """Refuse a run that is not retried, and name the effects that may repeat."""
    run = await find_run(backend, given["run"])
    await check_retriable(backend.job_calls, run.job.id)
    return await _ask_to_go_back(backend, given)


@noun.changes(
    _RUN,
    Parameter("step", "number", "The number of the step; by default the last one that failed.", least=1),
    asks=_ask_to_retry,
    tells=lambda _given, found: f"{found['run']} goes on. {amount(found['deleted'], 'record')} deleted.",
    refusals={**_REFUSALS, DataError: Refusal(409, "RunNotRetriable")},
)
async def retry(backend: Backend, given: Given) -> dict[str, Any]:
    """Let RUN, which failed or was canceled, go on from a step: what came after that is forgotten."""
    run = await find_run(backend, given["run"])
    deleted = await retry_from(backend.job_calls, run.job.id, given.get("step"))
    return {"run": run.job.id, "deleted": len(deleted)}


@noun.changes(
    _RUN,
    Parameter("step", "number", "The number of the step that it makes again first.", needed=True, least=1),
    asks=_ask_to_go_back,
    tells=lambda _given, found: f"{found['run']} begins with the history of {found['of']}.",
    refusals=_REFUSALS,
)
async def fork(backend: Backend, given: Given) -> dict[str, Any]:
    """Begin a new run with the history of RUN up to a step. RUN stays as it is."""
    run = await find_run(backend, given["run"])
    return {"run": await begin_fork(backend.job_calls, run.job.id, given["step"]), "of": run.job.id}
