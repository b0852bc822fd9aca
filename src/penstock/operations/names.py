"""Lists of things with names: a part of a name as a filter, and pages in the order of names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from penstock.operations.operation import Given, Parameter

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
