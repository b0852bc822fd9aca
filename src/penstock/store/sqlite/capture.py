"""The triggers that capture what an interest wants, as SQL: up to three for each, one for each event.

Owns their text. They use only what every SQLite has, as other programs write on connections of their own: that goes
for collations too, so columns are compared without theirs. Captured values are JSON whatever the columns hold: bytes
and infinities, which JSON has not, are text whose first character is an escape. Who reads JSON sees no difference to
text that is the same, but the spelling tells them apart.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence

from penstock.changes.conditions import Conditions
from penstock.changes.interest import Interest
from penstock.store.changes import Source
from penstock.store.contract import Statement
from penstock.store.dialect import row_of
from penstock.store.sqlite.dialect import SQLITE

_APPEND = "insert into penstock_change (interest, changed_at, kind, key, before, after)"
_NOW = "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')"
_VALUE = (
    "case typeof({0}) when 'null' then 'null' when 'integer' then cast({0} as text) "
    "when 'real' then case when abs({0}) > 1.7976931348623157e308 "
    "then iif({0} > 0, '\"\\u0049nfinity\"', '\"\\u002dInfinity\"') else printf('%!.20e', {0}) end "
    "when 'blob' then '\"\\u005cx' || lower(hex({0})) || '\"' else json_quote({0}) end"
)
_UNREADABLE = "char(65533)"  # what Python reads for text that is no UTF-8


def triggers(number: int, interest: Interest, columns: Collection[str]) -> dict[str, str]:
    """The statements that make an interest's triggers, by their names.

    Args:
        number: The interest's number.
        interest: The interest.
        columns: All columns of its table.
    """
    conditions = conditions_of(interest, columns)
    parts = {
        "insert": (interest.wants("enter"), conditions.matches("new"), [_entered(number, interest)]),
        "update": (bool(conditions.update()), conditions.update(), _updated(number, interest, conditions)),
        "delete": (interest.wants("delete"), conditions.matches("old"), [_deleted(number, interest)]),
    }
    return {
        f"penstock_change_{number}_{event}": (
            f"create trigger penstock_change_{number}_{event} after {event} on {SQLITE.quote(interest.table)} "
            f"for each row {f'when {condition} ' if condition else ''}begin {'; '.join(statements)}; end"
        )
        for event, (is_wanted, condition, statements) in parts.items()
        if is_wanted
    }


def conditions_of(interest: Interest, columns: Collection[str]) -> Conditions:
    """When to capture."""
    return Conditions(interest, "is not", _unlike, _unlike(columns))


def source(interest: Interest, collations: Mapping[str, str]) -> Source:
    """How the rows are read that an interest is about.

    Args:
        interest: The interest.
        collations: The collations of the table's columns, of those that have one, by names in lower case.
    """
    asked = Conditions(interest, "is not", _unlike, "").matches("r")
    table, spelled = SQLITE.quote(interest.table), _array("r", interest.key)
    columns = [f"r.{SQLITE.quote(name)}" for name in interest.place]
    known = " and ".join(f"{column} is not null" for column in columns)
    after = [_placed("k", number) for number in range(len(interest.place))]
    each = [_given("g.value", number) for number in range(len(interest.key))]
    values = [_readable(text) for text in (spelled, _object("r", interest.after), _object("r", interest.before))]
    select = f"select {', '.join(values)}, {_readable(_place(interest.place))} from {table} r where "
    order, also = f"order by {', '.join(columns)} limit", f"{asked} and " if asked else ""
    place = f"(select {', '.join(after)} from (select ? as k))"
    is_it = " and ".join(f"r.{SQLITE.quote(name)} = {value}" for name, value in zip(interest.key, each, strict=True))
    among = f"from json_each(?) g cross join {table} r where {is_it}"  # in this order, each by its whole key
    captured = [
        f"{_given('g.value', _member(name))} collate {collations.get(name.lower(), 'binary')}"
        for name in interest.place
    ]
    # Where text that is no UTF-8 was, nobody can say any more: it is taken for behind, as a row must not be lost.
    told = " and ".join(f"not instr(g.value -> {_member(name)}, {_UNREADABLE})" for name in interest.place)
    return Source(
        first=Statement(f"{select}{also}{known} {order} ?"),
        following=Statement(f"{select}{also}{known} and {row_of(columns)} > {place} {order} ?"),
        among=Statement(f"select {', '.join(values)} {among}{f' and {asked}' if asked else ''}"),
        keys=Statement(f"select {spelled} {among}"),
        passed=Statement(f"select g.key from json_each(?) g where {row_of(captured)} <= {place} and {told}"),
    )


def _member(column: str) -> str:
    """Where a column is in a captured row."""
    return literal(f"$.{json.dumps(column, ensure_ascii=False)}")


def _readable(text: str) -> str:
    """Text as Python reads it, whatever other programs have stored in it: a row must not keep those beside it."""
    return f"penstock_text(cast({text} as blob))"


def _is_text(column: str) -> str:
    """Whether a column holds no text that is no UTF-8."""
    return f"(typeof({column}) <> 'text' or penstock_is_text(cast({column} as blob)))"


def _place(columns: Sequence[str]) -> str:
    """The place of a row: text that is no UTF-8 stands there as its bytes, since rows after it are to be found."""
    named = {name: f"r.{SQLITE.quote(name)}" for name in columns}
    return _json_array(
        f"iif({_is_text(column)}, {_value('r', name)}, '{{\"text\":\"' || hex({column}) || '\"}}')"
        for name, column in named.items()
    )


def _placed(text: str, number: int) -> str:
    """A value of a place as its column holds it."""
    unreadable = f"({text} ->> '$[{number}].text')"
    return f"iif({unreadable} is null, {_given(text, number)}, cast(penstock_bytes({unreadable}) as text))"


def _given(text: str, member: int | str) -> str:
    """A captured value as its column holds it. What it is, its spelling tells."""
    spelled = f"({text} -> {member})"
    return f"iif(substr({spelled}, 1, 1) = '\"', penstock_given({spelled}), {text} ->> {member})"


def _unlike(columns: Collection[str]) -> str:
    return " or ".join(f"{_bare('old', column)} is not {_bare('new', column)}" for column in columns)


def _bare(row: str, column: str) -> str:
    """A column without its collation, which the program that writes may not have, and which may take two for one."""
    return f"(+{row}.{SQLITE.quote(column)} collate binary)"


def _entered(number: int, interest: Interest) -> str:
    key, after = _array("new", interest.key), _object("new", interest.after)
    return f"{_APPEND} values ({number}, {_NOW}, 'enter', {key}, null, {after})"


def _deleted(number: int, interest: Interest) -> str:
    key, before = _array("old", interest.key), _object("old", interest.before)
    return f"{_APPEND} values ({number}, {_NOW}, 'delete', {key}, {before}, null)"


def _updated(number: int, interest: Interest, conditions: Conditions) -> list[str]:
    """A changed key is the end of one row and the beginning of another."""
    was, is_now, moved = conditions.matches("old") or "true", conditions.matches("new") or "true", conditions.moved
    before, after = _object("old", interest.before), _object("new", interest.after)
    statements = []
    if interest.wants("delete"):
        key = _array("old", interest.key)
        statements.append(
            f"{_APPEND} select {number}, {_NOW}, 'delete', {key}, {before}, null where {was} and ({moved})"
        )
    kind = (
        f"case when {moved} then iif({is_now}, 'enter', 'none') "
        f"when {is_now} then iif({was}, 'change', 'enter') else 'leave' end"
    )
    wanted = ", ".join(f"'{kind}'" for kind in ("enter", "change", "leave") if interest.wants(kind))
    if wanted:
        statements.append(
            f"{_APPEND} select {number}, {_NOW}, kind, {_array('new', interest.key)}, {before}, {after} "
            f"from (select {kind} as kind) where kind in ({wanted})"
        )
    return statements


def _array(row: str, columns: Sequence[str]) -> str:
    return _json_array(_value(row, column) for column in columns)


def _json_array(values: Iterable[str]) -> str:
    return "'[' || " + " || ',' || ".join(values) + " || ']'"


def _object(row: str, columns: Sequence[str]) -> str:
    if not columns:
        return "null"
    pairs = (f"json_quote({literal(column)}) || ':' || {_value(row, column)}" for column in columns)
    return "'{' || " + " || ',' || ".join(pairs) + " || '}'"


def _value(row: str, column: str) -> str:
    return f"({_VALUE.format(_bare(row, column))})"


def lost(number: int) -> str:
    """Tells the reader of an interest that changes may have been missed."""
    return f"{_APPEND} values ({number}, {_NOW}, 'lost', null, null, null)"


def literal(text: str) -> str:
    """Text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def key_text(row: str, columns: Sequence[str]) -> str:
    """What spells the key of a row as its triggers do."""
    return _array(row, columns)


def is_known(key: Sequence[str]) -> str:
    """Whether a row, called ``r``, has a key: NULL is none, and neither is text that is no UTF-8: nobody can say it."""
    columns = [f"r.{SQLITE.quote(name)}" for name in key]
    return " and ".join(f"{column} is not null and {_is_text(column)}" for column in columns)
