"""The scope of a worker: all the work that its program declares, or only the names that its operator gave.

Owns the check of the names, and the text that is stored with a lease. `app` narrows the services, and `api/health`
looks for work that no worker runs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from typing import TypedDict, cast

from penstock.dataclass import dataclass
from penstock.errors import ConfigError
from penstock.functions.registry import matching, nearest

NONE = "none"  # on the command line: nothing of this kind
_NOUNS = {"pools": "pool", "not_pools": "pool", "tasks": "reactive task", "outboxes": "outbox", "crons": "cron"}


class Only(TypedDict, total=False):
    """The names of the work that a worker runs: all of a kind that is absent; see `App.open`."""

    pools: Collection[str]
    not_pools: Collection[str]
    tasks: Collection[str]
    outboxes: Collection[str]
    crons: Collection[str]


@dataclass(frozen=True, slots=True)
class Scope:
    """The work that one process runs. None stands for all of a kind."""

    pools: tuple[str, ...] | None = None
    not_pools: tuple[str, ...] = ()
    tasks: tuple[str, ...] | None = None
    outboxes: tuple[str, ...] | None = None
    crons: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """The scope in words; empty if everything runs."""
        given = ((kind, names) for kind, names in asdict(self).items() if names is not None and names != ())
        none = [f"no {kind}" for kind in ("pools", "tasks", "outboxes", "crons") if getattr(self, kind) == ()]
        return "; ".join([*(f"{kind.replace('_', ' ')} {', '.join(names)}" for kind, names in given), *none])

    def runs_pool(self, pool: str) -> bool:
        """Whether the jobs of a pool run."""
        return pool not in self.not_pools and (self.pools is None or pool in self.pools)

    def runs(self, kind: str, name: str) -> bool:
        """Whether a task, an outbox or a cron runs; `kind` is the name of the field."""
        names: tuple[str, ...] | None = getattr(self, kind)
        return names is None or name in names

    def text(self) -> str | None:
        """The scope as it is stored; None if everything runs."""
        return None if self == EVERYTHING else json.dumps(asdict(self))


EVERYTHING = Scope()


@dataclass(frozen=True, slots=True)
class Work:
    """The names of what a program declares."""

    pools: Collection[str]  # with the one of jobs without a pool
    tasks: Mapping[str, str]  # each with the pool of its runs
    outboxes: Collection[str]
    crons: Collection[str]

    def narrow(self, only: Only) -> Scope:
        """The scope that an operator has named; a name may go without its module.

        Raises:
            ConfigError: Nothing has one of these names.
        """
        for kind in only:
            if kind not in _NOUNS:
                raise ConfigError(f"There is no kind of work {kind!r}.", fix=f"There are {', '.join(_NOUNS)}.")
        known: dict[str, Collection[str]] = {"pools": self.pools, "not_pools": self.pools, "tasks": self.tasks}
        known |= {"outboxes": self.outboxes, "crons": self.crons}
        given = cast("Mapping[str, Collection[str]]", only)
        return Scope(**{kind: tuple(sorted({_find(kind, one, known[kind]) for one in given[kind]})) for kind in given})

    def list_unserved(self, scopes: Collection[Scope]) -> Iterator[tuple[str, str]]:
        """Yield the noun and the name of each thing that none of these processes runs."""
        for pool in self.pools:
            if not any(one.runs_pool(pool) for one in scopes):
                yield "pool", pool
        for task, pool in self.tasks.items():
            served = [one for one in scopes if one.runs_pool(pool)]
            if served and not any(one.runs("tasks", task) for one in served):
                yield "task", task
        for noun, kind, names in (("outbox", "outboxes", self.outboxes), ("cron", "crons", self.crons)):
            yield from ((noun, name) for name in names if not any(one.runs(kind, name) for one in scopes))


def scope_of(text: str | None) -> Scope:
    """A stored scope; kinds of work that this version does not know are left out."""
    given = {} if text is None else json.loads(text)
    return Scope(**{kind: tuple(names) for kind, names in given.items() if kind in _NOUNS and names is not None})


def _find(kind: str, name: str, names: Collection[str]) -> str:
    found = matching(name, names)
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{name!r} may be {' or '.join(found)}.", fix="Name one of them in full.")
    near = nearest(name, names)
    fix = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names) or 'none'}."
    raise ConfigError(f"The program has no {_NOUNS[kind]} {name!r}.", fix=fix)
