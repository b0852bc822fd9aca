"""What `penstock dev` says when it is ready: where it listens, what it has found, and a call to try.

Owns the words. Leaves when to say them to `dev`.
"""

from __future__ import annotations

import enum
import inspect
import json
import typing
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from importlib.metadata import version
from typing import Any, Literal, get_args, get_origin
from uuid import UUID

from penstock.app import App
from penstock.cli.failure import style
from penstock.cli.opening import shown_url
from penstock.cli.output import counted
from penstock.config import Config
from penstock.errors import ArgumentsInvalid
from penstock.functions.function import AnyFunction, FunctionKind
from penstock.schema.ids import Id, id_prefix_of

_PLAUSIBLE: dict[Any, Any] = {
    str: "Ada",
    int: 1,
    float: 1.5,
    bool: True,
    bytes: "",
    datetime: "2030-01-01T09:00:00Z",
    date: "2030-01-01",
    timedelta: "PT1H",
    Decimal: "9.99",
    UUID: "00000000-0000-4000-8000-000000000000",
}
_PLURALS = {"query": "queries"}
_NO_ID = "00000000000000000000000000"


def banner(app: App, config: Config, url: str, services: Sequence[str], *, reload: bool, token: str | None) -> str:
    """All that one needs to begin; with the admin token if it was made for this command, and is no setting."""
    facts = {
        "server": style(url, bold=True),
        "database": shown_url(config.database),
        "functions": _functions(app),
        "services": ", ".join(services),
        "admin": f"{url}/admin, bearer token: {'the setting admin_token' if token is None else token}",
    }
    lines = [f"{style('penstock', fg='cyan', bold=True)} {version('penstock')}", ""]
    lines += [f"  {style(f'{name:9}', dim=True)}  {value}" for name, value in facts.items()]
    call = sample_call(app, url)
    if call:
        lines += ["", f"  {style('try', dim=True)}", f"  {call}"]
    ends = "Starts again when the source changes. Ctrl-C stops it." if reload else "Ctrl-C stops it."
    return "\n".join([*lines, "", style(f"  {ends}", dim=True), ""])


def sample_call(app: App, url: str) -> str | None:
    """A curl line that calls one of the app's public functions; None if there is none that could be called by hand."""
    for kind in (FunctionKind.QUERY, FunctionKind.MUTATION, FunctionKind.ACTION):
        for function in app.registry:
            if function.kind is kind and function.public:
                arguments = _plausible_arguments(function)
                if arguments is not None:
                    body = json.dumps({"path": function.name, "args": arguments}).replace("'", r"'\''")
                    return f"curl {url}/api/{kind.value} -H 'content-type: application/json' -d '{body}'"
    return None


def _functions(app: App) -> str:
    kinds = Counter(function.kind.value for function in app.registry)
    listed = ", ".join(counted(count, kind, _PLURALS.get(kind, "")) for kind, count in kinds.items())
    internal = sum(not function.public for function in app.registry)
    return (listed or "none yet") + (f" ({internal} of them internal)" if internal else "")


def _plausible_arguments(function: AnyFunction) -> dict[str, Any] | None:
    """Arguments that the function's signature takes, without those that have a default."""
    hints = typing.get_type_hints(function.handler, include_extras=False)
    parameters = list(inspect.signature(function.handler).parameters.values())[1:]
    required = [parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty]
    arguments = {name: _plausible(hints.get(name)) for name in required}
    try:
        function.signature.check_json(json.dumps(arguments))
    except ArgumentsInvalid:
        return None
    return arguments


def _plausible(annotation: Any) -> Any:
    """A value of a type, as JSON."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in _PLAUSIBLE:
        return _PLAUSIBLE[annotation]
    if annotation is Id or origin is Id:
        return f"{id_prefix_of(next(iter(inner), None)) or 'row'}_{_NO_ID}"
    if origin is Literal:
        return inner[0]
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return next(iter(annotation)).value
    if type(None) in inner:
        return None
    return {list: [], dict: {}}.get(origin or annotation)
