"""The end of a job that has an on_complete: the call of it and the job's last settlement are one transaction.

What it raises undoes its own changes, never the job's ending: that is kept, and the call is made again as its policy
says.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from penstock.calls.run.execution import Execution
from penstock.calls.run.runner import Runner
from penstock.calls.run.threads import apart
from penstock.functions.function import AnyFunction
from penstock.jobs.job import Ending, Job, Settlement, job_id
from penstock.jobs.settle import completed
from penstock.jobs.states import JobState


async def complete(runner: Runner, function: AnyFunction, job: Job, ending: Ending, lease: int) -> None:
    """Run a job's on_complete, and end the job with it.

    Raises:
        LeaseLost: The job is not this worker's any more; nothing was committed.
    """
    args = arguments(job, ending)
    keep = runner.engine.keep

    def settled(_: object) -> Settlement:
        return completed(job, ending, runner.now(), keep)

    async def check() -> dict[str, Any]:
        return await apart(len(args), lambda: function.signature.check_json(args))

    await runner.mutation(function, check, execution=Execution(lease, settled))


def arguments(job: Job, ending: Ending) -> bytes:
    """What on_complete is called with, as JSON: `work_id`, `result`, `context`."""
    result = b'{"kind":"canceled"}'
    if ending.state is JobState.SUCCESS:
        result = b'{"kind":"success","value":' + (ending.result or "null").encode() + b"}"
    elif ending.state is JobState.FAILED:
        result = b'{"kind":"failed","error":' + to_json(ending.error or "") + b"}"
    context = (job.options.context or "null").encode()
    return b'{"work_id":"' + job_id(job.id).encode() + b'","result":' + result + b',"context":' + context + b"}"
