"""Rules: which rows of a table the callers of public functions may read and write.

Owns the declaration. Leaves applying it to `transaction/rules`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import DeclarationError

Rule = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rights of callers to the rows of a table, declared as an attribute of its class.

    A rule is a function of a row and the caller's `Identity` that says whether it is allowed. One that compares fields
    as the filter of a reactive task does becomes part of the SQL. Any other runs in Python, on each row that is read.
    What has no rule is refused. Rules hold in public functions; internal functions, jobs and the program itself act for
    the system.

    Args:
        read: The rows that are there for the caller.
        insert: The rows that the caller may insert.
        patch: The rows that the caller may patch or replace: as they are before, and as they are then.
        delete: The rows that the caller may delete.
        facts: A function of a `QueryCtx` that reads what the rules need, such as the caller's teams. Its result is the
            third argument of each rule. It runs once in a transaction, and again after writes to a table it has read.
        anonymous: Whether rules hold for callers without an identity too, and get None for it. By default these may do
            nothing.

    Raises:
        DeclarationError: A rule is an async function, or takes other arguments.
    """

    read: Rule | None = None
    insert: Rule | None = None
    patch: Rule | None = None
    delete: Rule | None = None
    facts: Callable[[Any], Any] | None = None
    anonymous: bool = False

    def __post_init__(self) -> None:
        given = ("row", "identity") if self.facts is None else ("row", "identity", "facts")
        for name in ("read", "insert", "patch", "delete"):
            if (rule := getattr(self, name)) is None:
                continue
            if inspect.iscoroutinefunction(rule):
                raise DeclarationError(
                    f"The rule for {name} is an async function, and would read for each row.",
                    fix="Read what it needs in facts=…, which runs once: its result is the rule's third argument.",
                )
            try:
                inspect.signature(rule).bind(*given)
            except TypeError as error:
                takes = ", ".join(given)
                raise DeclarationError(
                    f"The rule for {name} is no function of ({takes}): {error}.", fix=f"Write lambda {takes}: …"
                ) from error
