"""One row of the feed as SQL: the interests that a write concerns, and the columns captured for them.

Owns the content of rows that triggers write, for both stores; each store only spells it. Interests may capture
different columns. The row then holds one piece of JSON for each choice of columns, and each kind names its piece by
number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.changes.conditions import ALWAYS, When, any_of
from penstock.changes.interest import Interest
from penstock.dataclass import dataclass


class Conditional(NamedTuple):
    """An SQL value that is left out unless a condition holds."""

    value: str
    when: When


class FeedSpelling(ABC):
    """One store's spelling of the parts of a row. JSON is text, as the feed holds it."""

    concatenate = "||"

    @abstractmethod
    def join_list(self, values: Sequence[Conditional]) -> str:
        """Texts with commas between."""

    @abstractmethod
    def pieces(self, values: Sequence[Conditional]) -> str:
        """Pieces of JSON with U+001E between, which no JSON holds. One that is left out is empty."""

    @abstractmethod
    def array(self, row: str, columns: Sequence[str]) -> str:
        """Columns of a row as a JSON array."""

    @abstractmethod
    def json_object(self, row: str, columns: Sequence[str]) -> str:
        """Columns of a row as a JSON object; ``null`` if there are none."""


@dataclass(frozen=True, slots=True)
class FeedRow:
    """The content of one row of the feed."""

    interests: Mapping[int, Interest]  # all that have their own pieces in it, by number
    told: Mapping[int, When]  # the interests that it may tell, and when
    spelling: FeedSpelling
    kind: str = ""  # the kind of change; if empty, an SQL variable for each interest holds it
    guarded: bool = True  # written only where one of `told` holds, so that a single one is not asked again

    @property
    def guard(self) -> When:
        """Whether the row tells any interest."""
        return any_of(*self.told.values())

    def numbers(self) -> str:
        """The numbers of the interests."""
        return self._list({number: f"'{number}'" for number in self.told})

    def kinds(self) -> str:
        """The kind of change for each interest, in the order of their numbers."""
        forms, kinds = self._forms(), dict[int, str]()
        for number in self.told:
            form = f" {forms.index(_form(self.interests[number]))}" if len(forms) > 1 else ""
            variable, concatenate = kind_variable(number), self.spelling.concatenate
            computed = f"{variable} {concatenate} '{form}'" if form else variable
            kinds[number] = f"'{self.kind}{form}'" if self.kind else computed
        return self._list(kinds, constant=bool(self.kind))

    def key(self, row: str) -> str:
        """The key of a row, which all interests in it share."""
        return self.spelling.array(row, next(iter(self.interests.values())).key)

    def before(self, row: str) -> str:
        """The columns captured as they were; ``null`` if there are none."""
        return self._capture(row, 0)

    def after(self, row: str) -> str:
        """The columns captured as they are; ``null`` if there are none."""
        return self._capture(row, 1)

    def _capture(self, row: str, side: int) -> str:
        forms = self._forms()
        pieces = [self.spelling.json_object(row, form[side]) for form in forms]
        if len(forms) == 1 or set(pieces) == {"null"}:
            return pieces[0]
        whens = [
            any_of(*(self._when(number) for number in self.told if _form(self.interests[number]) == form))
            if form[side]
            else ALWAYS
            for form in forms
        ]
        return self.spelling.pieces(list(map(Conditional, pieces, whens)))

    def _list(self, values: Mapping[int, str], *, constant: bool = True) -> str:
        listed = [Conditional(value, self._when(number)) for number, value in values.items()]
        if len(listed) == 1 and listed[0].when == ALWAYS:
            return listed[0].value
        if constant and all(one.when == ALWAYS for one in listed):
            return f"'{','.join(one.value.strip(_QUOTE) for one in listed)}'"
        return self.spelling.join_list(listed)

    def _when(self, number: int) -> When:
        return ALWAYS if self.guarded and len(self.told) == 1 else self.told[number]

    def _forms(self) -> list[_Form]:
        return list(dict.fromkeys(map(_form, self.interests.values())))


def kind_variable(number: int) -> str:
    """The SQL variable that holds the kind of an update for an interest; NULL if the interest does not want it."""
    return f"kind_{number}"


def wants(number: int) -> When:
    """Whether an interest wants an update."""
    return When(f"{kind_variable(number)} is not null")


_QUOTE = "'"
_Form = tuple[tuple[str, ...], tuple[str, ...]]  # columns captured before and after


def _form(interest: Interest) -> _Form:
    return tuple(interest.before), tuple(interest.after)
