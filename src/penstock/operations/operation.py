"""The operations on a noun, as data: its words, what it takes, runs, asks before, and tells after.

The doors render operations: the command line as commands, ``/admin`` as routes with an audit, the dashboard as acts.
Owns the shape of an operation. Leaves to each door how parameters are written there, and how results look.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from penstock.app import Backend
from penstock.dataclass import dataclass
from penstock.errors import PenstockError
from penstock.observe.readable import amount

Given = Mapping[str, Any]  # the values of parameters by name; None or absent if nothing was given
Run = Callable[[Backend, Given], Awaitable[Any]]

Kind = Literal[
    "text",
    "any text",  # also an empty one
    "name",  # a text that a database can hold
    "texts",  # one or several
    "states",  # one or several, also with commas between
    "key",  # of a row: a text, a number, or several of them
    "flag",
    "number",
    "numbers",
    "choice",
    "choices",
    "moment",  # a time, or how long ago
    "page",  # the length of a list
    "part",  # how much one request changes; a command changes all
]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation."""

    name: str  # its name in JSON, in URLs and in forms
    kind: Kind = "text"  # what it takes
    about: str = ""  # the help of its option. A parameter without help is an argument on the command line
    needed: bool = False  # whether it must be given
    spelled: str = ""  # its option, if that is not the name with dashes
    metavar: str | None = None  # how the help of a command shows what it takes
    choices: tuple[str, ...] = ()  # what a choice, or each state, is one of
    least: int | None = None
    most: int | None = None
    default: int | None = None  # the length of a list if no other was asked for
    of_requests: bool = False  # whether only requests have it, and commands have no use for it


@dataclass(frozen=True, slots=True)
class Question:
    """The question to a person before an operation."""

    text: str
    consequence: str = ""  # what would happen
    # how many things are to be changed: up to one is changed without asking. None to ask in any case
    count: int | None = None
    none: str = ""  # what a form tells if there are none
    found: Given = field(default_factory=dict)  # parameters that are decided by now, for the run after the answer

    @property
    def needs_answer(self) -> bool:
        """Whether somebody has to say yes first."""
        return self.count is None or self.count > 1


def ask_of(verb: str, count: int, thing: str, **found: Any) -> Question:
    """Ask about so many things, such as ``Retry 2 rows?``."""
    text, none = f"{verb.capitalize()} {amount(count, thing)}?", f"There is no {thing} to {verb}."
    return Question(text, count=count, none=none, found=found)


class Refusal(NamedTuple):
    """How HTTP answers an error; `text`, instead of the error's own, has places for parameters and for `what`."""

    status: int
    code: str
    text: str = ""


Refusals = Mapping[type[PenstockError], Refusal]


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that can be done to a noun, or seen of it."""

    noun: str  # the noun: the group of its commands, and the first part of its path
    verb: str  # what is done; empty to list what there is
    about: str  # what it does, as the help of a command
    run: Run  # does it. `answers`, `tells` and the command line show the result
    takes: tuple[Parameter, ...]
    changes: bool  # whether it changes something. It is then a POST, and stands in the audit log
    # makes the question that the command line asks before
    asks: Callable[[Backend, Given], Awaitable[Question]] | None = None
    # what a person hears after: a text with places for parameters and parts of the result, or what makes it
    tells: str | Callable[[Given, Any], str] = ""
    answers: Callable[[Any], Any] = lambda found: found  # makes JSON of the result
    refusals: Refusals = field(default_factory=dict)  # how HTTP answers certain errors

    @property
    def path(self) -> str:
        """Its path below ``/admin``."""
        return f"/{self.noun}/{self.verb}".rstrip("/")

    def tell(self, given: Given, found: Any) -> str:
        """Say the result in words."""
        if isinstance(self.tells, str):
            return self.tells.format(**{**found, **given})
        return self.tells(given, found)


class Noun:
    """A noun, whose decorators make operations of functions: the name is the verb, and the docstring the help."""

    def __init__(self, name: str) -> None:
        self.name = name  # its name
        self.operations: list[Operation] = []  # its operations, in the order in which they are declared

    def lists(self, *takes: Parameter, **how: Any) -> Callable[[Run], Operation]:
        """Declare what shows all that there is; `how` as `Operation` takes it."""
        return self._declaring("", takes, changes=False, **how)

    def shows(self, *takes: Parameter, **how: Any) -> Callable[[Run], Operation]:
        """Declare what shows something."""
        return self._declaring(None, takes, changes=False, **how)

    def changes(self, *takes: Parameter, verb: str | None = None, **how: Any) -> Callable[[Run], Operation]:
        """Declare what changes something; the verb is the name of the function by default."""
        return self._declaring(verb, takes, changes=True, **how)

    def _declaring(self, verb: str | None, takes: tuple[Parameter, ...], **how: Any) -> Callable[[Run], Operation]:
        def declare(run: Run) -> Operation:
            said = run.__name__ if verb is None else verb
            made = Operation(self.name, said, inspect.getdoc(run) or "", run, takes, **how)
            self.operations.append(made)
            return made

        return declare


BY_NAME = (
    Parameter("text", about="Only names that contain this text, in any case.", metavar="TEXT"),
    Parameter("limit", "page", "How many to list.", default=1000),
    Parameter("after", about="Only names that come after this one.", metavar="NAME"),
)


class Named(Protocol):
    """Something with a name."""

    @property
    def name(self) -> str:
        """Its name."""


N = TypeVar("N", bound=Named)


def select(found: Iterable[N], given: Given) -> list[N]:
    """Select what the parameters ask for, in the order of names."""
    text, after = (given.get("text") or "").lower(), given.get("after") or ""
    chosen = [one for one in found if text in one.name.lower() and one.name > after]
    return sorted(chosen, key=lambda one: one.name)[: given.get("limit")]
