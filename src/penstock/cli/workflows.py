"""``penstock workflows``: lists runs of workflows, shows their steps, sends events, and exports histories."""

from __future__ import annotations

import json
from typing import Any

from penstock.cli.opening import with_backend
from penstock.cli.operations import add_commands, command_of, listing_of, takes
from penstock.cli.options import Options, json_option, whole_option
from penstock.cli.output import plain, print_field, print_fields, print_json, print_table, readable_time, trace_of
from penstock.cli.visible import first_line
from penstock.operations import workflows
from penstock.operations.jobs import data_of
from penstock.operations.operation import Given
from penstock.operations.workflows import Run
from penstock.workflows.waterfall import RunStep

_SHOWN = 60
_FACTS = (
    "id",
    "function",
    "args",
    "pool",
    "enqueued_at",
    "started_at",
    "finished_at",
    "progress",
    "published",
    "result",
    "error",
)


@listing_of(workflows.every)
def command(options: Options, /, **given: Any) -> None:
    _list(options, given)


@command.command("list")
@takes(workflows.every)
@json_option()
def list_runs(options: Options, /, **given: Any) -> None:
    """Show the newest runs that match, like penstock workflows."""
    _list(options, given)


def _list(options: Options, given: Given) -> None:
    found = with_backend(options, lambda backend: workflows.every.run(backend, given))
    if options.json:
        print_json({"runs": [{"doing": doing, **data_of(job)} for job, doing in found]})
        return
    rows = [
        (job.id, job.function, doing, readable_time(job.enqueued_at), _cut(first_line(job.error or "")))
        for job, doing in found
    ]
    print_table(("id", "workflow", "state", "enqueued", "waits or error"), rows)


@command.command("show", help=workflows.show.about)
@takes(workflows.show)
@whole_option
@json_option()
def show(options: Options, /, *, whole: bool, **given: Any) -> None:
    run: Run = with_backend(options, lambda backend: workflows.show.run(backend, given))
    data = data_of(run.job)
    if options.json:
        print_json({"doing": run.doing, **data, "steps": run.steps, "events": run.events})
        return
    facts = plain({name: data[name] for name in _FACTS})
    unread = {"unread events": ", ".join(run.events)} if run.events else {}
    print_fields({"state": run.doing, **facts, "traceback": trace_of(run.job.traceback, whole=whole), **unread})
    if run.steps:
        headers = ("step", "kind", "what", "state", "began", "took", "tries", "outcome or arguments")
        print_table(headers, [_row(one) for one in run.steps], right=("step", "took", "tries"))


def _row(step: RunStep) -> tuple[str, ...]:
    took = "" if step.ended_at is None else f"{(step.ended_at - step.began_at).total_seconds():,.3g} s"
    result = "" if step.result is None else f"gave {json.dumps(step.result, default=str)}"
    due = "" if step.due_at is None else f"next attempt {readable_time(step.due_at)}"
    outcome = step.error or due or result or (json.dumps(step.args, default=str) if step.args else "")
    number, tries = (str(one) if one > 0 else "" for one in (step.number, step.attempts))
    return (
        number,
        step.kind,
        step.what,
        step.state,
        readable_time(step.began_at),
        took,
        tries,
        _cut(first_line(outcome)),
    )


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _show_patches(found: dict[str, Any]) -> None:
    headers = ("change", "workflow", "since", "with it", "without")
    rows = [
        (one.name, one.workflow, readable_time(one.since), f"{one.with_it:,}", f"{one.without:,}")
        for one in found["patches"]
    ]
    print_table(headers, rows, right=("with it", "without"))
    if any(not one.without for one in found["patches"]):
        print_field("", "Without means unfinished runs that may need the old branch; with none you may delete it.")


add_commands(command, workflows.send, workflows.cancel, workflows.retry, workflows.fork)
command.add_command(command_of(workflows.export, show=print_json))
command.add_command(command_of(workflows.patches, show=_show_patches, data=lambda found: found))
