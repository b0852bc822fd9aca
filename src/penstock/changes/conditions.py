"""When a trigger is to capture a change, as SQL that both databases read but for the word that compares.

Owns which sides of an update an interest asks about. Leaves the triggers to the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.changes.interest import ROW, Interest


@dataclass(frozen=True, slots=True)
class Conditions:
    """The SQL conditions of one interest, from the store's ways to ask whether values or columns differ."""

    interest: Interest
    differs: str
    unlike: Callable[[Sequence[str]], str]
    any_unlike: str

    @property
    def moved(self) -> str:
        return self.unlike(self.interest.key)

    def matches(self, row: str) -> str:
        """Whether the interest is about a row, ``old`` or ``new``; empty if it is about all."""
        return f"({_of(self.interest.matches, row)}) is true" if self.interest.matches else ""

    def may_match(self, row: str) -> str:
        """A shorter form where NULL may count as false, as SQLite parses it anew for each statement."""
        return f"({_of(self.interest.matches, row)})" if self.interest.matches else ""

    def update(self) -> str:
        """Whether an update is wanted; empty if none is."""
        return " or ".join(f"({side})" for side in (self._new_side(), self._old_side()) if side)

    def may_update(self) -> str:
        """A shorter form for a trigger that asks `kind` afterwards: it may say yes to unwanted updates."""
        wants = self.interest.wants
        sides = [self.may_match("new")] if wants("enter") or wants("change") else []
        sides += [self.may_match("old")] if wants("leave") or wants("delete") else []
        return " or ".join(sides) if self.interest.matches else self.update()

    def kind(self, moved: str = "'moved'") -> str:
        """The kind of change of an update, or `moved` if its key has changed; NULL if it is not wanted."""
        enter, leave = (f"'{kind}'" if self.interest.wants(kind) else "null" for kind in ("enter", "leave"))
        change = f"case when {self._watched()} then 'change' end" if self.interest.wants("change") else "null"
        inside = f"else {change}"
        if self.interest.matches:
            new, old = self.matches("new"), self.matches("old")
            inside = f"when {new} then case when {old} then {change} else {enter} end when {old} then {leave}"
        return f"case when {self.moved} then {moved} {inside} end"

    def _new_side(self) -> str:
        """A row that the interest is about then: it entered, or has changed inside."""
        enter, change = self.interest.wants("enter"), self.interest.wants("change")
        new, old = self.matches("new"), self.matches("old")
        differs = [self._watched()] if change else []
        if enter:
            differs += [f"not ({old})"] if old else []
            differs += [self.moved] if self.interest.watches is not None or not change else []
        if not differs:
            return ""
        terms = [new, f"({' or '.join(differs)})"]
        return " and ".join(term for term in (*terms, old if change and not enter else "") if term)

    def _old_side(self) -> str:
        """A row that the interest was about: it left, or its key is gone."""
        leave, delete = self.interest.wants("leave"), self.interest.wants("delete")
        new, old = self.matches("new"), self.matches("old")
        gone = [f"not ({new})"] if leave and new else []
        if delete:
            gone.append(self.moved)
        return " and ".join(term for term in (old, f"({' or '.join(gone)})") if term) if gone else ""

    def _watched(self) -> str:
        if self.interest.watches is None:
            return self.any_unlike
        parts = [f"({_of(watch, 'old')}) {self.differs} ({_of(watch, 'new')})" for watch in self.interest.watches]
        captured = () if self.interest.exact else (*self.interest.before, *self.interest.after)
        parts += [self.unlike(tuple(dict.fromkeys(captured)))] if captured else []
        return " or ".join(parts) or "false"


def _of(sql: str | None, row: str) -> str:
    return (sql or "").replace(ROW, row)
