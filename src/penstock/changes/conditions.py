"""When a trigger captures a change, as SQL for both databases: only the comparison of values differs.

Owns the choice between the sides of an update, before and after. Leaves the triggers to the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.changes.interest import ROW, Interest
from penstock.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class When:
    """An SQL condition; `ALWAYS` and `NEVER` need not be asked."""

    sql: str

    @property
    def is_asked(self) -> bool:
        """Whether the database has to evaluate it."""
        return self not in {ALWAYS, NEVER}

    @property
    def in_parentheses(self) -> When:
        """This condition in parentheses, if it is asked."""
        return When(f"({self.sql})") if self.is_asked else self

    @property
    def opposite(self) -> When:
        """True where this is false."""
        return When(f"not ({self.sql})") if self.is_asked else ALWAYS if self == NEVER else NEVER


ALWAYS, NEVER = When("true"), When("false")


def any_of(*conditions: When) -> When:
    """Whether one of some conditions holds. Equal ones are asked once."""
    asked = dict.fromkeys(one.sql for one in conditions if one != NEVER)
    return ALWAYS if ALWAYS in conditions else When(" or ".join(asked)) if asked else NEVER


def all_of(*conditions: When) -> When:
    """Whether all of some conditions hold; those with an ``or`` are grouped already."""
    asked = [one.sql for one in conditions if one != ALWAYS]
    return NEVER if NEVER in conditions else When(" and ".join(asked)) if asked else ALWAYS


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of one interest."""

    interest: Interest
    differs: str  # the operator that compares two values, with NULL as a value
    unlike: Callable[[Sequence[str]], str]  # whether one of some columns differs, whatever their types and collations
    any_unlike: str  # whether any column of the table differs

    @property
    def key_differs(self) -> When:
        return When(self.unlike(self.interest.key))

    def exact_match(self, row: str) -> When:
        """Whether the interest is about a row, ``old`` or ``new``; never NULL."""
        matches = self.match_or_null(row)
        return When(f"{matches.sql} is true") if matches.is_asked else matches

    def match_or_null(self, row: str) -> When:
        """Match an interest; NULL may stand for false: a trigger's WHEN is parsed for each statement."""
        return When(_of(self.interest.matches, row)).in_parentheses if self.interest.matches else ALWAYS

    def exact_update(self) -> When:
        """Whether an update is wanted."""
        return any_of(self._new_side().in_parentheses, self._old_side().in_parentheses)

    def wide_update(self) -> When:
        """True for all wanted updates and for some others; short, as `update_kind` is exact."""
        exact, wants = self.exact_update(), self.interest.wants
        if exact == NEVER:
            return exact
        if not self.interest.matches:
            any_change = self.interest.watches is None and wants("change")  # also that of a key
            return ALWAYS if self.interest.on_demand else When(self.any_unlike) if any_change else exact
        new, old = wants("enter") or wants("change"), wants("leave") or wants("delete")
        return any_of(*[self.match_or_null("new")] * new, *[self.match_or_null("old")] * old)

    def update_kind(self, moved: str = "'moved'") -> str:
        """The kind of change of an update, or `moved` if it has changed the key; NULL if it is not wanted."""
        enter, leave = (f"'{kind}'" if self.interest.wants(kind) else "null" for kind in ("enter", "leave"))
        change = f"case when {self._watch_differs().sql} then 'change' end" if self.interest.wants("change") else "null"
        inside = f"else {change}"
        if self.interest.matches:
            new, old = self.exact_match("new").sql, self.exact_match("old").sql
            inside = f"when {new} then case when {old} then {change} else {enter} end"
            inside += f" when {old} then {leave}" if self.interest.wants("leave") else ""
        return f"case when {self.key_differs.sql} then {moved} {inside} end"

    def _new_side(self) -> When:
        """Whether the row entered, or has changed and is still of interest."""
        enter, change = self.interest.wants("enter"), self.interest.wants("change")
        new, old = self.exact_match("new"), self.exact_match("old")
        differs = [self._watch_differs()] if change else []
        if enter:
            differs += [old.opposite]
            differs += [self.key_differs] if self.interest.watches is not None or not change else []
        return all_of(new, any_of(*differs).in_parentheses, old if change and not enter else ALWAYS)

    def _old_side(self) -> When:
        """Whether the row left, or its key is gone."""
        left = [self.exact_match("new").opposite] if self.interest.wants("leave") else []
        moved = [self.key_differs] if self.interest.wants("delete") else []
        return all_of(self.exact_match("old"), any_of(*left, *moved).in_parentheses)

    def _watch_differs(self) -> When:
        if self.interest.watches is None:
            return When(self.any_unlike)
        parts = [When(f"({_of(one, 'old')}) {self.differs} ({_of(one, 'new')})") for one in self.interest.watches]
        captured = () if self.interest.exact else (*self.interest.before, *self.interest.after)
        return any_of(*parts, *([When(self.unlike(tuple(dict.fromkeys(captured))))] if captured else ()))


def _of(sql: str | None, row: str) -> str:
    return (sql or "").replace(ROW, row)
