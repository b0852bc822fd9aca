"""Retries runs of workflows from a step, forks them, and ends them by force, for administrators.

`workflows/history` says which records stay. A worker runs the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from penstock.calls.enqueue.jobs import JobCalls
from penstock.clock import secret
from penstock.errors import DataError, ValueInvalid
from penstock.functions.function import AnyFunction, FunctionKind
from penstock.jobs.job import JobId, JobStatus, Options, job_id, job_uuid
from penstock.jobs.states import RETRIABLE
from penstock.transaction.transaction import Transaction
from penstock.values import decode_json, encode_json
from penstock.workflows.history import split_at
from penstock.workflows.outcome import result_outcome
from penstock.workflows.record import BEGINNING, Beginning, Record, RecordKind


async def look_back(calls: JobCalls, run: JobId, step: int | None) -> tuple[Sequence[Record], Sequence[Record]]:
    """The records of a run that stay if it goes on from a step, and the others, whose effects may repeat.

    Args:
        calls: The jobs of a backend.
        run: The id of the run's job.
        step: The number of the step; None for the last one that failed.

    Raises:
        ValueInvalid: The run has no such step, or none has failed.
    """
    records = await calls.engine.store.workflows.read_history(job_uuid(run))
    decrypt = calls.engine.store.encryption.decrypt
    if step is None:
        failed = [one for one in records if one.outcome and decrypt(one.outcome).startswith('{"error":')]
        if not failed:
            raise ValueInvalid(f"No step of {run} has failed.", fix="Say from which step it is to go on.")
        step = max(failed, key=lambda one: one.place or 0).number
    if step < 1 or all(one.number != step for one in records):
        raise ValueInvalid(f"{run} has no step {step}.", fix="See penstock workflows show.")
    return split_at(records, step)


async def check_retriable(calls: JobCalls, run: JobId) -> None:
    """Check that a run can be retried.

    Raises:
        DataError: It has not failed, or is unknown.
    """
    status, _ = await _find(calls, run)
    if status.state not in RETRIABLE:
        raise DataError(
            f"{run} is {status.state.value}; only runs that failed or were canceled are retried.",
            fix="To go on from one of its steps in another run, use penstock workflows fork.",
        )


async def retry_from(calls: JobCalls, run: JobId, step: int | None = None) -> Sequence[Record]:
    """Let a run that has failed or was canceled go on from a step, without what came after it; the deleted records.

    Events that these had received are received again, and its limits of time count from now on.

    Args:
        calls: The jobs of a backend.
        run: The id of the run's job.
        step: The number of the step; None for the last one that failed.

    Raises:
        DataError: The run has not failed, or is unknown.
        ValueInvalid: It has no such step, or none has failed.
    """
    calls.check_outside("Runs are retried")
    await check_retriable(calls, run)
    kept, deleted = await look_back(calls, run, step)
    store = calls.engine.store.workflows
    events = [event for one in deleted if (event := _event_of(calls, one)) is not None]
    numbers = [one.number for one in deleted]
    last = max(one.place or 0 for one in kept)
    goes_on = replace(_beginning_of(calls, kept), active=0.0, since=calls.now().timestamp())
    begun = calls.engine.store.encryption.encrypt(goes_on.write())
    await calls.runner.attempt(lambda: store.take_back(job_uuid(run), last, numbers, events, begun))
    if not await calls.retry([job_uuid(run)]):
        raise DataError(f"{run} was retried by somebody else.")
    return deleted


async def fork(calls: JobCalls, run: JobId, step: int) -> JobId:
    """Begin a new run with the history of another up to a step, which it makes again; its id.

    It has the pool, the priority, the limits of time and the concurrency key of the other; the limits count from now
    on. It has received the events of that history too. Children that have not ended are begun again. The arguments of
    the calls in the history are not compared, as the other may have told them its id or a token, which are the other's.

    Args:
        calls: The jobs of a backend.
        run: The id of the other run's job.
        step: The number of the step.

    Raises:
        DataError: The run is unknown.
        ValueInvalid: It has no such step.
    """
    calls.check_outside("Runs are forked")
    status, function = await _find(calls, run)
    kept, _ = await look_back(calls, run, step)
    asked, encryption = status.options, calls.engine.store.encryption
    options = Options(
        timeout=asked.timeout,
        deadline=asked.deadline,
        keep=asked.keep,
        concurrency_key=asked.concurrency_key,
        starter=asked.starter,
    )
    args = function.signature.check_json(encode_json(status.args, "Arguments"))
    make = calls.maker(function, calls.now(), pool=status.pool, priority=status.priority, options=options)
    job = make(args)
    copies = [one for one in kept if one.place is not None or one.kind is RecordKind.PATCH]
    seeds, since = _seeds_of(_beginning_of(calls, kept), job_uuid(run), copies), calls.now().timestamp()
    begun = encryption.encrypt(Beginning(secret=secret(), since=since, seeds=seeds).write())
    copies = [replace(one, learned=None, digest="") for one in copies]
    copies = [replace(one, outcome=begun) if one.number == BEGINNING else one for one in copies]
    store, received = calls.engine.store.workflows, {one.number: _event_of(calls, one) or 0 for one in copies}

    async def send(transaction: Transaction) -> None:
        transaction.add_job(job)
        events = await store.copy_received(transaction, job.id, job_uuid(run), [*filter(None, received.values())])
        own = [_with_event(calls, one, events.get(received[one.number])) for one in copies]
        await store.copy(transaction, job.id, own)

    await calls.runner.write(send)
    return job_id(job.id)


def _event_of(calls: JobCalls, record: Record) -> int | None:
    """The id of the event that a run has received, if this is a record of that."""
    if record.kind is not RecordKind.EVENT or record.outcome is None:
        return None
    result: dict[str, Any] = decode_json(calls.engine.store.encryption.decrypt(record.outcome)).get("result") or {}
    return result.get("id")


def _with_event(calls: JobCalls, record: Record, event: int | None) -> Record:
    """The record of a wait with the id of another event."""
    if event is None:
        return record
    encryption = calls.engine.store.encryption
    result = decode_json(encryption.decrypt(record.outcome or ""))["result"] | {"id": event}
    return replace(record, outcome=encryption.encrypt(result_outcome(encode_json(result, "A payload"))))


def _beginning_of(calls: JobCalls, records: Sequence[Record]) -> Beginning:
    begun = next(one for one in records if one.number == BEGINNING)
    return Beginning.read(calls.engine.store.encryption.decrypt(begun.outcome or "{}"))


def _seeds_of(beginning: Beginning, run: UUID, copies: Sequence[Record]) -> Sequence[tuple[int, int]]:
    """The seeds of a fork: those of the other run until it has learned all that is copied."""
    last = max(one.place or 0 for one in copies)
    earlier = [(until, seed) for until, seed in beginning.seeds if until < last]
    later = [seed for until, seed in beginning.seeds if until >= last]
    return [*earlier, (last, later[0] if later else run.int + beginning.life)] if last else []


async def end_now(calls: JobCalls, run: JobId) -> None:
    """End a run without its code: nothing is cleaned up or undone. Its children are canceled.

    Args:
        calls: The jobs of a backend.
        run: The id of the run's job.
    """
    uuid, store = job_uuid(run), calls.engine.store.workflows

    async def ask(transaction: Transaction) -> None:
        transaction.add_cancel(uuid)
        await store.end_now(transaction, uuid, transaction.now)
        transaction.wakes = True

    await calls.write(ask)


async def _find(calls: JobCalls, run: JobId) -> tuple[JobStatus, AnyFunction]:
    status = await calls.find(job_uuid(run))
    function = None if status is None else calls.engine.registry.find(status.function)
    if status is None or function is None or function.kind is not FunctionKind.WORKFLOW:
        raise DataError(f"{run} is no run of a workflow of this program, or its status has expired.")
    return status, function
