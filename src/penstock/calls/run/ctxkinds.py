"""The ctx that a handler takes, by its first parameter's annotation; refused at import if it can never get that."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

from penstock.calls.run.context import ActionCtx, MutationCtx, QueryCtx
from penstock.calls.run.syncctx import SyncActionCtx, SyncMutationCtx, SyncQueryCtx, SyncWorkflowCtx
from penstock.calls.workflows.context import WorkflowCtx
from penstock.errors import DeclarationError
from penstock.functions.function import AnyFunction, Function, FunctionKind, name_of
from penstock.observe.places import place_of_handler
from penstock.schema.table import Table

CONTEXTS = {
    (FunctionKind.QUERY, True): QueryCtx,
    (FunctionKind.QUERY, False): SyncQueryCtx,
    (FunctionKind.MUTATION, True): MutationCtx,
    (FunctionKind.MUTATION, False): SyncMutationCtx,
    (FunctionKind.ACTION, True): ActionCtx,
    (FunctionKind.ACTION, False): SyncActionCtx,
    (FunctionKind.WORKFLOW, True): WorkflowCtx,
    (FunctionKind.WORKFLOW, False): SyncWorkflowCtx,
}
_OF_TASKS = {f"{sync}{word}" for sync in ("", "Sync") for word in ("TaskCtx", "MutationTaskCtx", "TaskBatchCtx")}
_KIND_OF = {ctx: key for key, ctx in CONTEXTS.items()}


def check_ctx(function: AnyFunction) -> None:
    """Refuse a function whose first parameter is annotated with something else than the ctx that it gets."""
    for guard in () if function.access is None else function.access.guards:
        _check_guard(guard)
    expected, handler = CONTEXTS[function.kind, function.is_async], function.declared
    parameter = next(iter(inspect.signature(handler).parameters.values()))
    given = annotation_of(handler, parameter)
    if typing.get_origin(given) in _KIND_OF:
        given = typing.get_origin(given)  # without the type of what it publishes
    if _takes(given, expected):
        return
    kind, where = function.kind.with_article, label(handler)
    if given not in _KIND_OF:
        written = str(parameter).replace("'", "")  # annotations that are texts
        raise DeclarationError(
            f"{where}: the first parameter of {kind} is its ctx, not {written}.",
            fix=f"Write (ctx: {_spell(expected)}, …).",
        )
    meant, is_async = _KIND_OF[given]
    fix = f"Write ctx: {_spell(expected)}"
    if is_async is function.is_async:
        fix = f"{fix}, or declare it with @app.{meant.value}"
    elif is_async and meant is function.kind:
        fix = f"Write async def, or take ctx: {_spell(expected)} after from penstock import sync"
    raise DeclarationError(
        f"{where} is {kind} written with {'async def' if function.is_async else 'def'}, and takes a {_spell(given)}.",
        fix=f"{fix}.",
    )


def _check_guard(guard: Callable[..., Any]) -> None:
    is_async = inspect.iscoroutinefunction(guard)
    expected = CONTEXTS[FunctionKind.QUERY, is_async]
    given = annotation_of(guard, next(iter(inspect.signature(guard).parameters.values())))
    if not _takes(given, expected):
        raise DeclarationError(
            f"{label(guard)} is a guard written with {'async def' if is_async else 'def'}, and takes a "
            f"{_spell(given) if isinstance(given, type) else given}.",
            fix=f"Write ctx: {_spell(expected)}: guards only read.",
        )


def refuse_bare(word: str, given: object, example: str) -> None:
    """Refuse a decorator that was written without parentheses, and so got the function as its first argument."""
    if isinstance(given, types.FunctionType | Function):
        handler = given.declared if isinstance(given, Function) else given
        raise DeclarationError(
            f"@app.{word} stands above {label(handler)} without parentheses.", fix=f"Write @app.{word}({example})."
        )


def label(handler: Callable[..., Any]) -> str:
    """The name of a handler, and where it is written."""
    return f"{name_of(handler)} ({place_of_handler(handler)})"


def annotation_of(handler: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The annotation of a parameter; its text, if it names a class that does not exist yet."""
    given = parameter.annotation
    if not isinstance(given, str):
        return given
    try:
        return eval(given, getattr(inspect.unwrap(handler), "__globals__", {}))  # noqa: S307 - as `typing` reads it
    except Exception:  # noqa: BLE001 - it is read again when the app starts, and refused then
        return given


def word_of(annotation: Any) -> str:
    """The name of the class that an annotation names, without its parameters: ``TaskCtx`` for ``TaskCtx[Order]``."""
    origin = typing.get_origin(annotation) or annotation
    text = origin if isinstance(origin, str) else getattr(origin, "__name__", "")
    return text.strip("'\"").partition("[")[0].rpartition(".")[2]


def task_ctx_of(handler: Any, table: type[Table]) -> str:
    """The name of the type of the ctx that the handler of a reactive task takes.

    Raises:
        DeclarationError: It is none of a reactive task, or of another table; or it does not fit def or async def.
    """
    parameters = list(inspect.signature(handler).parameters.values())
    annotation = annotation_of(handler, parameters[0]) if len(parameters) == 1 else None
    name = word_of(annotation)
    if name not in _OF_TASKS:
        raise DeclarationError(
            f"@app.reactive_task: {label(handler)} does not say what kind of task it is.",
            fix="Write (ctx: TaskCtx[Order]) if it calls the outside world, (ctx: MutationTaskCtx[Order]) if it only "
            "writes this database.",
        )
    if name.startswith("Sync") is inspect.iscoroutinefunction(handler):
        raise DeclarationError(
            f"@app.reactive_task: {label(handler)} takes a {name}.",
            fix="async def takes TaskCtx, MutationTaskCtx or TaskBatchCtx, and def their twins, such as SyncTaskCtx.",
        )
    rows = typing.get_args(annotation)
    if rows and isinstance(rows[0], type) and rows[0] is not Any and not issubclass(table, rows[0]):
        raise DeclarationError(
            f"@app.reactive_task({table.__name__}): {label(handler)} takes {name}[{rows[0].__name__}].",
            fix=f"Write ctx: {name}[{table.__name__}].",
        )
    return name


def _takes(given: Any, expected: type[Any]) -> bool:
    """Whether a parameter with this annotation may get a ctx."""
    origin = typing.get_origin(given)
    if origin is Annotated:
        return _takes(typing.get_args(given)[0], expected)
    if origin in {typing.Union, types.UnionType}:
        return any(_takes(one, expected) for one in typing.get_args(given))
    if given is Any or given is inspect.Parameter.empty or getattr(given, "_is_protocol", False):
        return True
    return issubclass(expected, given) if isinstance(given, type) else isinstance(given, str | typing.TypeVar)


def _spell(ctx: type[Any]) -> str:
    """The name of a ctx, as programs write it."""
    name = ctx.__name__
    return f"sync.{name.removeprefix('Sync')}" if name.startswith("Sync") else name
