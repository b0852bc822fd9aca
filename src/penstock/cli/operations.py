"""Operations as commands: their parameters are arguments and options, and a person is asked before what asks.

Owns how parameters are typed. Leaves the look of results to the files of the nouns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import click

from penstock.app import Backend
from penstock.cli.confirm import confirm
from penstock.cli.opening import with_backend
from penstock.cli.options import Command, Options, combine, json_option, listing, pass_options
from penstock.cli.output import print_json, print_list, say
from penstock.dataclass import dataclass
from penstock.errors import ValueInvalid
from penstock.operations.moments import read_duration, read_moment
from penstock.operations.operation import Given, Operation, Parameter


class Read(click.ParamType[Any]):
    """A text that is read by a function, which raises `ValueInvalid` for a wrong one."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return self._read(value)
        except ValueInvalid as error:
            self.fail(error.what, parameter, context)


def _states(text: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(","))
    if unknown := [word for word in found if word not in choices]:
        raise ValueInvalid(f"there is no state {unknown[0]!r}; they are {', '.join(choices)}.")
    return found


DURATION, MOMENT = Read("duration", read_duration), Read("when", read_moment)


def takes(operation: Operation) -> Callable[[Command], Command]:
    """Give a command the arguments and options of an operation, by their names."""
    return combine(*(_parameter(one) for one in operation.takes if not (one.of_requests or one.kind == "part")))


def listing_of(operation: Operation) -> Callable[[Callable[..., None]], click.Group]:
    """Make the group of commands of a noun; the function below prints what there is of it."""
    return lambda show: listing(operation.noun, operation.about)(takes(operation)(show))


def list_command(
    operation: Operation,
    headers: Sequence[str],
    row: Callable[[Any], Sequence[str]],
    *,
    right: Collection[str] = (),
) -> click.Group:
    """Make the group of commands of a noun that prints a table of what there is; `right` as `print_table` takes it."""

    @listing_of(operation)
    def command(options: Options, /, **given: Any) -> None:
        ((things, found),) = with_backend(options, lambda backend: operation.run(backend, given)).items()
        print_list(things, found, headers, row, as_json=options.json, right=right)

    return command


@dataclass(frozen=True, slots=True)
class Look:
    """How the command of an operation looks, where it is no sentence after a question."""

    show: Callable[[Any], None] | None = None  # prints the result
    data: Callable[[Any], Any] | None = None  # makes JSON of the result, for commands that can print it
    yes: str = "Do not ask first."  # the help of the option that says that nobody needs to be asked
    check: Callable[[Given], None] = lambda _given: None  # refuses a misused command before anything is opened
    # refuses one that only the program can judge
    judge: Callable[[Backend, Given], None] = lambda _backend, _given: None
    code: Callable[[Any], int] = lambda _found: 0  # makes the exit code of a result


def command_of(operation: Operation, **how: Any) -> click.Command:
    """Make the command of an operation; `how` it looks as `Look` takes it."""
    look = Look(**how)
    yes_option = click.option("--yes", "-y", is_flag=True, help=look.yes)
    asks = (yes_option,) if operation.asks is not None else ()

    @click.command(operation.verb, help=operation.about)
    @combine(takes(operation), *asks, pass_options if look.data is None else json_option())
    def command(options: Options, /, *, yes: bool = False, **given: Any) -> int:
        look.check(given)

        async def do(backend: Backend) -> tuple[Given, Any]:
            look.judge(backend, given)
            return await _carry_out(backend, operation, given, sure=yes)

        known, found = with_backend(options, do)
        if options.json and look.data is not None:
            print_json(look.data(found))
        elif look.show is not None:
            look.show(found)
        else:
            say(operation.tell(known, found))
        return look.code(found)

    return command


def add_commands(group: click.Group, *operations: Operation, **how: Any) -> None:
    """Add the commands of operations to the group of their noun."""
    for one in operations:
        group.add_command(command_of(one, **how))


async def _carry_out(backend: Backend, operation: Operation, given: Given, *, sure: bool) -> tuple[Given, Any]:
    """Ask if need be, then do it; what was given and found by then, and the result."""
    if operation.asks is not None:
        question = await operation.asks(backend, given)
        confirm(question.text, question.consequence, sure=sure or not question.needs_answer)
        given = {**given, **question.found}
    return given, await operation.run(backend, given)


def _parameter(one: Parameter) -> Callable[[Command], Command]:
    kind, how = _type_of(one), dict[str, Any](metavar=one.metavar, required=one.needed)
    if not one.about:
        several = (one.metavar or "").endswith("...")
        return click.argument(one.name, type=kind, nargs=-1 if several else 1, **how)
    how |= {"type": kind, "help": one.about}
    if one.kind == "flag":
        how |= {"is_flag": True, "type": None, "default": None}
    elif one.kind == "choices":
        how["multiple"] = True
    elif one.default is not None:
        how |= {"default": one.default, "show_default": True}
    return click.option(one.spelled or f"--{one.name.replace('_', '-')}", one.name, **how)


def _type_of(one: Parameter) -> Any:
    match one.kind:
        case "number" | "numbers" | "page":
            least = 1 if one.kind == "page" else one.least
            return int if least is None else click.IntRange(least, one.most)
        case "choice" | "choices":
            return click.Choice(one.choices)
        case "states":
            return Read("states", partial(_states, choices=one.choices))
        case "moment":
            return MOMENT
    return str
