"""The parts of a page of the dashboard: a path, a template, the values that it shows, and the acts on it.

To add a page, write a file in `pages/` with one or more `Page` values, add them to `pages/every.py`, and write its
template. The template extends ``frame.html``. Each block whose name begins with ``live_`` is rendered again while
somebody looks, and sent if its bytes differ; the block stands in ``<section data-live="name">``. Values that users
store are escaped by the template; arguments and results go through the filter ``masked`` first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import field, replace
from enum import IntEnum
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from penstock.api.live import Watch
from penstock.app import Backend
from penstock.dashboard.activity import Activity
from penstock.dashboard.mask import mask
from penstock.dataclass import dataclass
from penstock.errors import ValueInvalid
from penstock.observe.logbook import LogEvent
from penstock.operations.operation import Given, N, Operation, Parameter, select
from penstock.store.nouns.jobs import ABOVE_ALL

_LISTED = 100  # things of a page in the order of names


class Role(IntEnum):
    """The rights of a person here; each includes those before it."""

    look = 1
    operate = 2
    edit = 3


@dataclass(frozen=True, slots=True)
class View:
    """A page as one URL asks for it; equal for all who look at it in the same role."""

    backend: Backend
    activity: Activity  # what its pools do, and did in the last minutes
    words: Mapping[str, str]  # the words of the path and of the query
    role: Role  # what the viewer may do
    secrets: frozenset[str] = frozenset()  # names whose values are hidden, as the settings say
    answer: Any = None  # the answer of the query that the page watches; None if it has to be asked for
    salt: str = field(default="", repr=False)  # hashes versions of rows, in the forms of one session

    def word(self, name: str) -> str | None:
        """A word of the URL, or of the form; None if it is missing or empty."""
        return self.words.get(name) or None

    def require(self, name: str) -> str:
        """The word of this name. Raises `ValueInvalid` if there is none."""
        found = self.word(name)
        if found is None:
            raise ValueInvalid(f"Fill in {name}.")
        return found

    def below(self, name: str) -> UUID:
        """The id below which a list goes on; above all without one. Raises `ValueInvalid` if it is none."""
        try:
            return UUID(self.words[name]) if self.word(name) else ABOVE_ALL
        except ValueError as error:
            raise ValueInvalid(f"{name} is an id of this page.") from error

    async def log(self, limit: int, **where: Any) -> list[LogEvent]:
        """Log events of all processes, newest first, without secrets; `where` as `StoredLogbook.events` takes it."""
        engine = self.backend.engine
        await engine.write_logbook()
        found = await engine.store.logbook.events(limit, **where)
        return [
            replace(one, facts={name: mask(fact, self.secrets) for name, fact in one.facts.items()}) for one in found
        ]

    def integer(self, name: str) -> int:
        """Read the number of a message, which is negative if its row is older than the outbox."""
        try:
            return int(self.require(name))
        except ValueError:
            raise ValueInvalid(f"{name} is the number of a message.") from None

    def number(self, name: str, least: int, most: int) -> int:
        """A whole number. Raises `ValueInvalid` if it is none, or out of range."""
        text = self.require(name)
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):  # noqa: PLR2004 - digits of 64 bits
            raise ValueInvalid(f"{name} is a whole number from {least:,} to {most:,}.")
        return int(text)


class Elsewhere(Exception):
    """Sends the reader to another page, by its path below the dashboard."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an act, other than a line above its own page."""

    told: str
    # values of the template, for the page with the form as it was sent
    values: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None  # the path of another page below the dashboard, to which the reader goes instead


@dataclass(frozen=True, slots=True)
class Act:
    """Something that a form of a page does."""

    # does it; the words of the view are those of the form too. Returns what is then told
    run: Callable[[View], Awaitable[str | Answer]]
    role: Role = Role.operate  # who may do it
    # the question that is asked before it is done, or what asks it of a view; an empty one to do it at once
    sure: str | Callable[[View], Awaitable[str]] = ""
    # what the audit log says of it; by default the words of the form
    about: Callable[[View], Mapping[str, Any]] | None = None
    operation: Operation | None = None  # the operation that it does, if it is one


Sure = str | Callable[[View], Awaitable[str]]


def parameters_of(view: View, operation: Operation) -> Given:
    """Read the parameters of an operation from the words of a view."""
    return {one.name: _value_of(view, one) for one in operation.takes}


def page_of(found: Iterable[N], given: Given) -> tuple[list[N], Mapping[str, Any]]:
    """A page of a list by names, and what its template asks: the text that was given, and where the next one begins."""
    shown, text = select(found, {**given, "limit": _LISTED + 1}), given.get("text") or ""
    after = shown[_LISTED - 1].name if len(shown) > _LISTED else None
    more = None if after is None else urlencode({"text": text, "after": after})
    return shown[:_LISTED], {"text": text, "more": more, "filtered": bool(text or given.get("after"))}


def _value_of(view: View, one: Parameter) -> Any:
    match one.kind:
        case "flag" | "part" | "page":  # a page has its own length, and an act is whole
            return None
        case "number" | "numbers" if one.needed or view.word(one.name) is not None:
            return view.integer(one.name) if one.kind == "number" else [view.integer(one.name)]
    return view.require(one.name) if one.needed else view.word(one.name)


def act_of(
    operation: Operation,
    told: str | Callable[[Given, Any], str],
    *,
    sure: Sure | None = None,
    given: Callable[[View], Given] | None = None,
) -> Act:
    """Make an act that does an operation.

    Args:
        operation: The operation.
        told: What is told then: a text with places for parameters and parts of the result, or what makes it.
        sure: The question before; by default the one that the operation asks.
        given: Makes the parameters of a view; by default its words are.
    """

    def read(view: View) -> Given:
        return parameters_of(view, operation) if given is None else given(view)

    async def run(view: View) -> str:
        known = read(view)
        found = await operation.run(view.backend, known)
        return told.format(**{**found, **known}) if isinstance(told, str) else told(known, found)

    async def ask(view: View) -> str:
        if operation.asks is None:
            return ""
        question = await operation.asks(view.backend, read(view))
        if question.count == 0:
            raise ValueInvalid(question.none)
        return f"{question.text} {question.consequence}".rstrip()

    return Act(run, sure=ask if sure is None else sure, operation=operation)


@dataclass(frozen=True, slots=True)
class Page:
    """A page."""

    path: str  # its path below the dashboard, with parameters in braces
    title: str  # its title, and its name in the menu
    template: str  # the file of its template
    # reads the values that the template shows. It runs each second while somebody looks
    load: Callable[[View], Awaitable[Mapping[str, Any]]]
    acts: Mapping[str, Act]  # its acts, by the name that forms send as ``act``
    above: str | None = None  # the path of the page from which it is reached; None if it is in the menu itself
    # watches a query: the page is then loaded again only after its answer has changed. It may give None
    watch: Callable[[View], Watch[Any] | None] | None = None
    every: float = 0.0  # the least seconds between two runs of `load` for its viewers
    group: str = ""  # the part of the menu that it is in
