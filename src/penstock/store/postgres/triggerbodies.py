"""What the functions of triggers say: for each event, which interests are told what, in one row of the feed.

What is read of a row is read behind a guard. If that fails for all interests together, as a column of one is gone, each
is told by itself, and the one that it fails for is told that a change was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from penstock.changes.conditions import Conditions
from penstock.changes.interest import Interest
from penstock.store.postgres.spelling import UNLIKE, array, object_, unlike
from penstock.store.rows.interests import Interests, form_of, forms_of

_TOLD = """
    <<{label}>> begin
        begin
            {read}
        exception when others then
            {otherwise}
            exit {label};
        end;
        {append}
    end;"""
_UPDATED = """
        if {first} operator(pg_catalog.=) 'moved' then
            {gone}
            {came}
            exit {label};
        end if;
        {append}"""
_SOME = "if not exists (select {values} from penstock_rows r) then exit {label}; end if;"
_INTO = "insert into penstock.change (slot, xid, changed_at, interests, kinds, key, before, after) "
_XID, _NOW = "pg_catalog.pg_current_xact_id()::pg_catalog.text::pg_catalog.int8", "pg_catalog.clock_timestamp()"
_NEXT = "pg_catalog.chr(30)"  # parts the pieces of what is captured: no JSON holds it


def conditions_of(interest: Interest, types: Mapping[str, str] | None = None) -> Conditions:
    """When to capture. Rows and keys are compared byte by byte: some types have no equality, and equal is not alike.

    Args:
        interest: The interest.
        types: The SQL types of the table's columns, if what is said with them is read where the search path is known.
    """
    return Conditions(
        interest, "is distinct from", lambda columns: unlike(columns, types or {}), f"{UNLIKE}(old.*, new.*)"
    )


def appended(numbers: Iterable[int], kind: str) -> str:
    """Tells interests of what has neither a key nor values."""
    told = dict.fromkeys(numbers, "")
    return _append(_numbers(told), f"'{','.join([kind] * len(told))}'", "null", "null", "null")


def variable(number: int) -> str:
    """What an update is for an interest, in the function that tells of it."""
    return f"kind_{number}"


class Telling:
    """Writes what tells some interests of one event.

    Args:
        interests: Those that want to hear of the event.
        types: The SQL types of the table's columns.
        pinned: Whether the function has the search path that conditions were read with.
        sure: Whether the trigger has asked their condition already.
    """

    def __init__(self, interests: Interests, types: Mapping[str, str], *, pinned: bool, sure: bool) -> None:
        self._interests = interests
        self._types, self._pinned, self._sure = types, pinned, sure
        self._forms = forms_of(interests)
        self._conditions = {number: conditions_of(one, types if pinned else None) for number, one in interests.items()}

    def rows(self, label: str = "told") -> str:
        """Tell of all rows that a statement has inserted."""
        tests = self._matching("r", "enter")
        by, kinds = self._lists(tests, "enter")
        values = f"{by}, {kinds}, {self._key('r')}, null, {self._pieces(1, 'r', tests) or 'null'}"
        where = f" where {' or '.join(tests.values())}" if all(tests.values()) else ""
        append = (
            f"{_INTO}select penstock.current_slot(), (select {_XID}), (select {_NOW}), {values} "
            f"from penstock_rows r{where};"
        )
        read = _SOME.format(values=values, label=label)
        return self._told(label, read, append, Telling.rows)

    def inserted(self, label: str = "told") -> str:
        """Tell of a row that is inserted."""
        return self._row(label, "enter", "new", Telling.inserted)

    def deleted(self, label: str = "told") -> str:
        """Tell of a row that is deleted."""
        return self._row(label, "delete", "old", Telling.deleted)

    def updated(self, label: str = "told") -> str:
        """Tell of a row that is updated. A changed key is two rows."""
        kinds = {number: variable(number) for number in self._interests}
        unwanted = " and ".join(f"{kind} is null" for kind in kinds.values())
        tests = {number: f"{kind} is not null" if len(kinds) > 1 else "" for number, kind in kinds.items()}
        read = " ".join(f"{kinds[number]} := {one.kind()};" for number, one in self._conditions.items())
        before, after = self._pieces(0, "old", tests), self._pieces(1, "new", tests)
        read += f" if {unwanted} then exit {label}; end if; {self._read('new', before, after)}"
        by, told = self._lists(tests)
        values = ("row_before" if before else "null", "row_after" if after else "null")
        append = _UPDATED.format(
            label=label,
            first=next(iter(kinds.values())),
            gone=self._moved("delete", "old", values[0], "null"),
            came=self._moved("enter", "new", *values),
            append=_append(by, told, "row_key", *values),
        )
        return self._told(label, read, append, Telling.updated)

    # ----- steps

    def _row(self, label: str, kind: str, row: str, again: Callable[[Telling, str], str]) -> str:
        tests = dict.fromkeys(self._interests, "") if self._sure else self._matching(row, kind)
        before = self._pieces(0, row, tests) if row == "old" else ""
        after = self._pieces(1, row, tests) if row == "new" else ""
        by, kinds = self._lists(tests, kind)
        read = self._read(row, before, after)
        if any(tests.values()):
            read += f" told_by := {by}; told_as := {kinds};"
            by, kinds = "told_by", "told_as"
        append = _append(by, kinds, "row_key", "row_before" if before else "null", "row_after" if after else "null")
        if all(tests.values()):
            append = f"if told_by operator(pg_catalog.<>) '' then {append} end if;"
        return self._told(label, read, append, again)

    def _told(self, label: str, read: str, append: str, again: Callable[[Telling, str], str]) -> str:
        otherwise = appended(self._interests, "lost")
        if len(self._interests) > 1:
            ones = {
                number: Telling({number: one}, self._types, pinned=self._pinned, sure=False)
                for number, one in self._interests.items()
            }
            otherwise = "".join(again(one, f"{label}_{number}") for number, one in ones.items())
        return _TOLD.format(label=label, read=read, otherwise=otherwise, append=append)

    def _moved(self, kind: str, row: str, before: str, after: str) -> str:
        """Tell of the row that is gone, or the one that came, where a key was changed."""
        tests = self._matching(row, kind)
        if not tests:
            return ""
        append = _append(*self._lists(tests, kind), self._key(row), before, after)
        return f"if {' or '.join(tests.values())} then {append} end if;" if all(tests.values()) else append

    def _matching(self, row: str, kind: str) -> dict[int, str]:
        return {
            number: one.matches(row) for number, one in self._conditions.items() if self._interests[number].wants(kind)
        }

    def _lists(self, tests: Mapping[int, str], kind: str = "") -> tuple[str, str]:
        """The numbers of those that are told, and what each is told."""
        many = len(self._forms) > 1

        def told(number: int) -> str:
            form = f" {self._forms.index(form_of(self._interests[number]))}" if many else ""
            if kind:
                return f"'{kind}{form}'"
            return f"{variable(number)} operator(pg_catalog.||) '{form}'" if form else variable(number)

        kinds = [_if(test, told(number)) for number, test in tests.items()]
        return _numbers(tests), kinds[0] if len(kinds) == 1 else _joined(kinds)

    def _key(self, row: str) -> str:
        return array(row, next(iter(self._interests.values())).key, self._types)

    def _read(self, row: str, before: str, after: str) -> str:
        read = {"row_key": self._key(row), "row_before": before, "row_after": after}
        return " ".join(f"{name} := {value};" for name, value in read.items() if value)

    def _pieces(self, side: int, row: str, tests: Mapping[int, str]) -> str:
        """What is captured on a side of a change, a piece for each form; empty if that is nothing."""
        pieces = []
        for form in self._forms:
            piece = object_(row, form[side], self._types)
            asked = [test for number, test in tests.items() if form_of(self._interests[number]) == form]
            if piece and len(self._forms) > 1 and all(asked):
                piece = f"case when {' or '.join(asked) or 'false'} then {piece} end"
            pieces.append(piece)
        if len(pieces) == 1 or not any(pieces):
            return pieces[0]
        return _joined((piece or "null" for piece in pieces), f"{_NEXT}, ''")


def _append(by: str, kinds: str, *values: str) -> str:
    return f"{_INTO}values (penstock.current_slot(), {_XID}, {_NOW}, {by}, {kinds}, {', '.join(values)});"


def _numbers(tests: Mapping[int, str]) -> str:
    """The numbers of interests, without those whose test fails."""
    if not any(tests.values()):
        return f"'{','.join(map(str, tests))}'"
    return _joined(_if(test, f"'{number}'") for number, test in tests.items())


def _joined(texts: Iterable[str], between: str = "','") -> str:
    return f"pg_catalog.array_to_string(array[{', '.join(texts)}]::pg_catalog.text[], {between})"


def _if(test: str, value: str) -> str:
    return f"case when {test} then {value} end" if test else value
