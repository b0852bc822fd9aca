"""`replay`: runs today's code of a workflow on the history of a run, which was exported to a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock.app import App
from penstock.calls.workflows.body import Body
from penstock.calls.workflows.context import WorkflowCtx
from penstock.errors import ContextError
from penstock.functions.function import AnyFunction, FunctionKind
from penstock.jobs.job import JobId, job_uuid
from penstock.jobs.states import JobState
from penstock.values import encode_json
from penstock.workflows.exported import read_records
from penstock.workflows.history import History, Mismatch
from penstock.workflows.record import BEGINNING, Beginning, Record


class ReplayFailed(AssertionError):
    """The code of a workflow does not fit the history of a run: such runs would be parked after a deploy."""


def replay(app: App, history: str | Path | Mapping[str, Any]) -> None:
    """Replay the history of a run with today's code. No step runs, and no database is needed.

    ``penstock workflows export RUN`` writes a history. Keep some in your repository, and replay each in a test. If
    functions of it have secrets, which are not exported, calls are compared by their names alone; so are those after a
    token of ``ctx.event_token``.

    Args:
        app: The app that declares the workflow.
        history: The path of the file, or what JSON makes of it.

    Raises:
        ReplayFailed: The code makes other calls, or another number of them, than the run did.
        ValueInvalid: It is no history.
    """
    form = history if isinstance(history, Mapping) else json.loads(Path(history).read_text("utf-8"))
    records, run = read_records(form), JobId(form["run"])
    function = app.registry.find(form["workflow"])
    if function is None or function.kind is not FunctionKind.WORKFLOW:
        raise ReplayFailed(f"The app declares no workflow {form['workflow']!r}. A run of it would wait for one.")
    begun = next((one for one in records if one.number == BEGINNING), None)
    beginning = Beginning.read(None if begun is None else begun.outcome)
    known = _History(records, hides=_hides(app, function, records))
    body = Body(function, known, job_uuid(run).int, beginning, str)
    known.has_told_tokens = lambda: body.tokens > beginning.tokens
    try:
        _play(body, known, WorkflowCtx(body, app.registry, run), form)
    except (Mismatch, ContextError) as error:
        raise ReplayFailed(f"The code of {function.name} does not fit the history of {run}: {error}") from error
    finally:
        body.drop()


def _play(body: Body, history: History, ctx: WorkflowCtx, form: Mapping[str, Any]) -> None:
    if not history.deliveries:
        return
    began, *others = history.deliveries
    arguments = body.function.signature.check_json(encode_json(form["args"], "Arguments"))
    body.begin(began.at, ctx, arguments)
    for record in others:
        body.deliver(record)
    body.check_replayed()
    if form["state"] == JobState.SUCCESS.value:
        if not body.has_ended:
            raise Mismatch("the code goes on where the run had ended")
        try:
            body.result()
        except Exception as error:
            raise Mismatch(f"the code raises {type(error).__name__} where the run succeeded: {error}") from error


class _History(History):
    """A history without the secrets of its run. If these are among the arguments, they are not compared."""

    def __init__(self, records: Iterable[Record], *, hides: bool) -> None:
        super().__init__(records)
        self._hides = hides
        self.has_told_tokens: Callable[[], bool] = lambda: False  # their seals are made with a secret

    def match(self, number: int, kind: Any, function: str, digest: str, args: str | None) -> Record | None:
        is_hidden = self._hides or self.has_told_tokens()
        return super().match(number, kind, function, "" if is_hidden else digest, args)


def _hides(app: App, workflow: AnyFunction, records: list[Record]) -> bool:
    """Whether a function of a history takes or gives secrets."""
    called = [found for one in records if (found := app.registry.find(one.function)) is not None]
    return any(one.signature.encoder.secrets or one.signature.results.secrets for one in (workflow, *called))
