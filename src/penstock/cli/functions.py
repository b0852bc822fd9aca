"""``penstock functions``: what the app can do, by name, kind, visibility and signature."""

from __future__ import annotations

import inspect
import re
from typing import Any

import click

from penstock.cli.opening import open_app
from penstock.cli.options import Options, json_option, pass_options
from penstock.cli.output import print_json, print_table, say
from penstock.functions.function import AnyFunction

_MODULES = re.compile(r"""(?<!['"\w.])(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])""")


@click.command("functions")
@json_option()
@pass_options
def command(options: Options) -> None:
    """List the functions of the app."""
    functions = sorted(open_app(options).registry, key=lambda function: function.name)
    if options.json:
        print_json([_described(function) for function in functions])
        return
    if not functions:
        say("The app has no functions yet.")
        return
    print_table(
        ("function", "kind", "visible", "signature"),
        [
            (function.name, function.kind.value, _visibility(function), signature_text(function))
            for function in functions
        ],
    )


def signature_text(function: AnyFunction) -> str:
    """A function's parameters and result as they are written, without its ctx."""
    signature = inspect.signature(function.handler)
    parameters = list(signature.parameters.values())[1:]
    result = signature.return_annotation
    arrow = "" if result is inspect.Signature.empty else f" -> {_written(result)}"
    return f"({', '.join(map(_parameter, parameters))}){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    text = parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {_written(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        text += f" = {parameter.default!r}" if ":" in text else f"={parameter.default!r}"
    return text


def _written(annotation: Any) -> str:
    """An annotation without the names of modules."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _MODULES.sub("", text)


def _visibility(function: AnyFunction) -> str:
    return "public" if function.public else "internal"


def _described(function: AnyFunction) -> dict[str, Any]:
    signature = inspect.signature(function.handler)
    empty = inspect.Signature.empty
    return {
        "name": function.name,
        "kind": function.kind.value,
        "visibility": _visibility(function),
        "parameters": [
            {
                "name": parameter.name,
                "type": None if parameter.annotation is empty else _written(parameter.annotation),
                "required": parameter.default is empty,
            }
            for parameter in list(signature.parameters.values())[1:]
        ],
        "returns": None if signature.return_annotation is empty else _written(signature.return_annotation),
    }
