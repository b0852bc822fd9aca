"""The bodies of trigger functions: for each event, one row of the feed that tells all interests.

A body reads the row behind a guard. If reading fails for all interests together, as when a column of one is gone, each
interest is told by itself. The one for which it fails is told that a change was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from penstock.changes.conditions import ALWAYS, Conditions, When
from penstock.changes.interest import Interest
from penstock.store.nouns.captures import Interests
from penstock.store.postgres.spelling import UNLIKE, PostgresFeedSpelling, unlike
from penstock.store.sql.dialect import qualify
from penstock.store.sql.feedrow import FeedRow, kind_variable, wants

_GUARDED = """
    <<{label}>> begin
        begin
            {read}
        exception when others then
            {otherwise}
            exit {label};
        end;
        {append}
    end;"""
# Interests that share triggers have one key: if it has changed for the first, it has for all.
_UPDATED = """
        if {first} operator(pg_catalog.=) 'moved' then
            {gone}
            {came}
            exit {label};
        end if;
        {append}"""
_SOME = "if not exists (select {values} from penstock_rows r) then exit {label}; end if;"
_INTO = "insert into penstock.change (slot, xid, changed_at, interests, kinds, key, before, after) "
_SLOT = "penstock.current_slot()"
_XID, _NOW = "pg_catalog.txid_current()", "pg_catalog.clock_timestamp()"  # an xid8 becomes a bigint through text only


def conditions_of(interest: Interest, types: Mapping[str, str] | None = None) -> Conditions:
    """The conditions of an interest. Columns are compared byte by byte: some types have no equality.

    With types, columns of plain types are compared quicker. That needs a known search path.
    """
    return Conditions(
        interest, "is distinct from", lambda columns: unlike(columns, types or {}), f"{UNLIKE}(old.*, new.*)"
    )


def append_plain(schema: str, numbers: Iterable[int], kind: str) -> str:
    """Tell interests of a change that has neither a key nor values."""
    row = FeedRow({}, dict.fromkeys(numbers, ALWAYS), PostgresFeedSpelling({}), kind)
    return _values(schema, row.numbers(), row.kinds(), "null", "null", "null")


class FunctionBody:
    """Writes the body that tells some interests of one event, in a table whose columns have these SQL types.

    `schema` is that of penstock's own tables. `path_is_set` if the function has the search path of the conditions;
    `trigger_asks` if the trigger has asked the condition of the only interest.
    """

    def __init__(
        self,
        schema: str,
        interests: Interests,
        types: Mapping[str, str],
        *,
        path_is_set: bool,
        trigger_asks: bool = False,
    ) -> None:
        self._schema, self._interests = schema, interests
        self._types, self._path_is_set, self._trigger_asks = types, path_is_set, trigger_asks
        known = types if path_is_set else None
        self._conditions = {number: conditions_of(one, known) for number, one in interests.items()}

    def on_insert_rows(self, label: str = "told") -> str:
        """Tell of all rows that a statement has inserted."""
        row = self._row("enter", "r", guarded=False)  # `_SOME` has to read the conditions too
        values = f"{row.numbers()}, {row.kinds()}, {row.key('r')}, null, {row.after('r')}"
        where = f" where {row.guard.sql}" if row.guard.is_asked else ""
        append = (
            qualify(f"{_INTO}select {_SLOT}, ", self._schema)
            + f"(select {_XID}), (select {_NOW}), {values} from penstock_rows r{where};"
        )
        return self._guard(label, _SOME.format(values=values, label=label), append, FunctionBody.on_insert_rows)

    def on_insert(self, label: str = "told") -> str:
        return self._one_row(label, "enter", "new", FunctionBody.on_insert)

    def on_delete(self, label: str = "told") -> str:
        return self._one_row(label, "delete", "old", FunctionBody.on_delete)

    def on_update(self, label: str = "told") -> str:
        """Tell of a row that is updated. A changed key is the end of one row and the beginning of another."""
        row = self._feed_row("", {number: wants(number) for number in self._interests})
        kinds = {kind_variable(number): one.update_kind() for number, one in self._conditions.items()}
        unwanted = " and ".join(f"{variable} is null" for variable in kinds)
        before, after, read = _read_captured(row, "old", "new")
        computed = " ".join(f"{variable} := {kind};" for variable, kind in kinds.items())
        append = _UPDATED.format(
            label=label,
            first=next(iter(kinds)),
            gone=self._tell_moved("delete", "old", before, "null"),
            came=self._tell_moved("enter", "new", before, after),
            append=_values(self._schema, row.numbers(), row.kinds(), "row_key", before, after),
        )
        read = f"{computed} if {unwanted} then exit {label}; end if; row_key := {row.key('new')};{read}"
        return self._guard(label, read, append, FunctionBody.on_update)

    # ----- steps

    def _one_row(self, label: str, kind: str, side: str, again: Callable[[FunctionBody, str], str]) -> str:
        row = self._row(kind, side, guarded=False)
        numbers, kinds = row.numbers(), row.kinds()
        before, after, read = _read_captured(row, "old" if side == "old" else "", "new" if side == "new" else "")
        read = f"row_key := {row.key(side)};{read}"
        if any(when.is_asked for when in row.told.values()):
            read += f" told_by := {numbers}; told_as := {kinds};"
            numbers, kinds = "told_by", "told_as"
        append = _values(self._schema, numbers, kinds, "row_key", before, after)
        if row.guard.is_asked:
            append = f"if told_by operator(pg_catalog.<>) '' then {append} end if;"
        return self._guard(label, read, append, again)

    def _guard(self, label: str, read: str, append: str, again: Callable[[FunctionBody, str], str]) -> str:
        otherwise = append_plain(self._schema, self._interests, "lost")
        if len(self._interests) > 1:
            ones = {
                number: FunctionBody(self._schema, {number: one}, self._types, path_is_set=self._path_is_set)
                for number, one in self._interests.items()
            }
            otherwise = "".join(again(one, f"{label}_{number}") for number, one in ones.items())
        return _GUARDED.format(label=label, read=read, otherwise=otherwise, append=append)

    def _tell_moved(self, kind: str, side: str, before: str, after: str) -> str:
        row = self._row(kind, side)
        if not row.told:
            return ""
        append = _values(self._schema, row.numbers(), row.kinds(), row.key(side), before, after)
        return f"if {row.guard.sql} then {append} end if;" if row.guard.is_asked else append

    def _row(self, kind: str, side: str, *, guarded: bool = True) -> FeedRow:
        told = {
            number: ALWAYS if self._trigger_asks else one.exact_match(side)
            for number, one in self._conditions.items()
            if one.interest.wants(kind)
        }
        return self._feed_row(kind, told, guarded=guarded)

    def _feed_row(self, kind: str, told: Mapping[int, When], *, guarded: bool = True) -> FeedRow:
        return FeedRow(self._interests, told, PostgresFeedSpelling(self._types), kind, guarded)


def _read_captured(row: FeedRow, old: str, new: str) -> tuple[str, str, str]:
    """The variables that hold the captured columns, before and after, and the assignments that read them."""
    values = {"row_before": row.before(old) if old else "null", "row_after": row.after(new) if new else "null"}
    before, after = (name if value != "null" else "null" for name, value in values.items())
    return before, after, "".join(f" {name} := {value};" for name, value in values.items() if value != "null")


def _values(schema: str, *values: str) -> str:
    """Append a row of the feed."""
    return qualify(f"{_INTO}values ({_SLOT}, ", schema) + f"{_XID}, {_NOW}, {', '.join(values)});"
