"""Why a condition is true or false of a row: its parts that decide, with the values that they read."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.dataclass import dataclass
from penstock.reactive import expression as ex
from penstock.reactive.evaluate import FORMS, Values

_LONGEST = 80


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of a filter that decides, whether it is true of the row, and each of its terms with its value."""

    part: str
    holds: bool
    found: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        found = ", ".join(f"{term} is {value}" for term, value in self.found)
        return f"{self.part} is {'true' if self.holds else 'false'}: {found}"


def explain(condition: ex.Condition, values: Values) -> Iterator[Finding]:
    """The parts that make a condition true or false of a row, in order."""
    outcome = condition.read(values)
    if isinstance(condition, (ex.Every, ex.Some)):
        alone = isinstance(condition, ex.Some)  # one part that is so decides alone
        for one in condition.conditions:
            if outcome is not alone or one.read(values) is outcome:
                yield from explain(one, values)
    elif isinstance(condition, ex.Not) and isinstance(condition.condition, (ex.Every, ex.Some, ex.Not)):
        yield from explain(condition.condition, values)
    else:
        leaf = condition.condition if isinstance(condition, ex.Not) else condition
        yield Finding(str(condition), outcome, tuple(_values_in(leaf, values)))  # type: ignore[arg-type]


def _values_in(leaf: ex.Leaf, values: Values) -> Iterator[tuple[str, str]]:
    seen = set()
    for term in ex.terms_of(leaf):
        for part in dict.fromkeys((term, *ex.operands(term))) if isinstance(term, ex.Arithmetic) else (term,):
            if not isinstance(part, ex.Constant) and part not in seen:
                seen.add(part)
                yield str(part), show(part, values)
                if isinstance(part, ex.Length):
                    yield str(part.of), show(part.of, values)


def show(term: ex.Term, values: Values) -> str:
    value = term.read(values)
    text = "None" if value is None else FORMS[term.kind].shown(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
