"""``penstock functions`` and ``run``: lists the functions of the app, and runs one of them."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from decimal import Decimal
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import click
from pydantic_core import from_json

from penstock.app import App
from penstock.cli.opening import UNHURRIED, open_app, open_backend
from penstock.cli.options import Options, json_option
from penstock.cli.output import print_json, print_table, say
from penstock.cli.program import find_program, load_app
from penstock.cli.visible import visible_json
from penstock.errors import ArgumentsInvalid, FunctionNotFound, InputError
from penstock.functions.function import AnyFunction, annotation_text, signature_text
from penstock.functions.httpaction import HttpAction
from penstock.functions.registry import Registry, matching, nearest
from penstock.identity.caller import SYSTEM, Caller
from penstock.identity.claims import identity_of_fields
from penstock.wire.incoming import Message
from penstock.wire.outgoing import Format, encode_result


@click.command("functions")
@json_option()
def command(options: Options) -> None:
    """List the functions of the app."""
    registry = open_app(options).registry
    functions = sorted((*registry, *registry.http), key=lambda function: function.name)
    if options.json:
        print_json([_describe(function) for function in functions])
        return
    if not functions:
        say("The app has no functions yet.")
        return
    print_table(
        ("function", "kind", "access", "signature"),
        [(function.name, _kind(function), _access(function), signature_text(function)) for function in functions],
    )


def _kind(function: AnyFunction) -> str:
    return str(function.place) if isinstance(function, HttpAction) else function.kind.value


def _access(function: AnyFunction) -> str:
    return (function.access_text or "-") if function.public else "internal"


def _describe(function: AnyFunction) -> dict[str, Any]:
    signature = inspect.signature(function.handler)
    empty = inspect.Signature.empty
    return {
        "name": function.name,
        "kind": "http" if isinstance(function, HttpAction) else function.kind.value,
        **({"request": str(function.place)} if isinstance(function, HttpAction) else {}),
        "visibility": "public" if function.public else "internal",
        "access": function.access_text or None,
        "parameters": [
            {
                "name": parameter.name,
                "type": None if parameter.annotation is empty else annotation_text(parameter.annotation),
                "required": parameter.default is empty,
            }
            for parameter in list(signature.parameters.values())[1:]
        ],
        "returns": None if signature.return_annotation is empty else annotation_text(signature.return_annotation),
    }


def _complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Complete the name of a function, without its module if it is unique; a program that cannot be imported has none.

    It catches what the program prints, as the shell would take that for names.
    """
    named = context.ensure_object(Options).app
    with suppress(Exception), redirect_stdout(StringIO()):
        names = [function.name for function in load_app(find_program(named, Path.cwd())).registry]
        if ":" not in begun:
            numbers = Counter(name.rpartition(":")[2] for name in names)
            names = [short if numbers[short := name.rpartition(":")[2]] == 1 else name for name in names]
        return sorted(name for name in names if name.startswith(begun))
    return []


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.argument("function", shell_complete=_complete)
@click.argument("arguments", nargs=-1, metavar="[ARGS]")
@click.option(
    "--identity",
    metavar="JSON",
    help='Run it for a user, such as {"issuer": "shop", "subject": "ada"}, with guards and rules.',
)
@json_option("Print the result on one line.")
def run_command(options: Options, function: str, arguments: Sequence[str], identity: str | None) -> None:
    """Run a FUNCTION of the app, public or internal, and print its result as JSON.

    ARGS are name=value pairs, a JSON object, or - to read a JSON object from stdin. Leave out the function's module if
    the name is unique.

    \b
    penstock run book customer=Ada phone=123 starts_at=2026-12-24T18:00:00Z
    penstock run bookings:upcoming '{"customer": "Ada"}'

    The database must fit the app: migrate, dev, serve and worker see to that.
    """  # noqa: D301 - click's mark for lines that it must not wrap
    app = open_app(options)
    found = find_function(app.registry, function)
    caller = SYSTEM if identity is None else Caller(identity_of_fields(from_json(_read_json(identity))))
    text = asyncio.run(_call(app, options, found, check_arguments(found, arguments), caller))
    if options.json:
        click.echo(visible_json(text.decode()))
    else:
        print_json(from_json(text), pretty=True)


async def _call(app: App, options: Options, function: AnyFunction, arguments: bytes, caller: Caller) -> bytes:
    async with open_backend(app, options, fitting=True, call_timeout=UNHURRIED) as backend:
        result: bytes = await backend.dispatch.call(
            function.name,
            None,
            arguments,
            internal=True,
            caller=caller,
            finish=partial(encode_result, form=Format.CLEAN),
        )
        return result


def find_function(registry: Registry, name: str) -> AnyFunction:
    exact = registry.find(name)
    if exact is not None:
        return exact
    names = [function.name for function in registry]
    found = matching(name, names)
    if len(found) == 1:
        return next(function for function in registry if function.name == found[0])
    if found:
        raise FunctionNotFound(f"{name!r} may be {' or '.join(found)}.", fix="Name one of them in full.", path=name)
    near = nearest(name, names, 3)
    fix = f"Did you mean {' or '.join(near)}?" if near else "See penstock functions."
    raise FunctionNotFound(f"The app has no function {name!r}.", fix=fix, path=name)


def check_arguments(function: AnyFunction, given: Sequence[str]) -> bytes:
    arguments = read_arguments(function, given)
    try:
        function.signature.check_json(arguments)
    except ArgumentsInvalid as error:
        error.fix = error.fix or f"It takes {signature_text(function)}."
        raise
    return arguments


def read_arguments(function: AnyFunction, given: Sequence[str]) -> bytes:
    if not given:
        return b"{}"
    if given == ("-",):
        return _read_json(sys.stdin.buffer.read())
    if len(given) == 1 and given[0].lstrip().startswith("{"):
        return _read_json(given[0])
    pairs = dict(_pair(text) for text in given)
    values = {name: _value(text) for name, text in pairs.items()}
    values.update({name: pairs[name] for name in _invalid_names(function, values) & pairs.keys()})
    return json.dumps(values).encode()


def _read_json(text: bytes | str) -> bytes:
    try:
        message = Message(text)
    except InputError as error:
        raise InputError(str(error), fix="Write name=value, or one JSON object in quotes.") from error
    return message.arguments(message.value)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ArgumentsInvalid(f"{text!r} is no argument.", fix="Write name=value, or one JSON object in quotes.")
    return name, value


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_float=_number)
    except ValueError:
        return text


def _number(text: str) -> Any:
    return float(text) if Decimal(repr(float(text))) == Decimal(text) else text  # which a Decimal takes


def _invalid_names(function: AnyFunction, values: dict[str, Any]) -> set[str]:
    """Values that the signature refuses; they may be meant as text, such as the digits of a phone number."""
    try:
        function.signature.check_json(json.dumps(values))
    except ArgumentsInvalid as error:
        return {detail["loc"][0] for detail in error.facts["errors"] if detail["loc"]}
    return set()
