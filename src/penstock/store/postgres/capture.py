"""The triggers that capture what an interest wants, as SQL: up to four triggers for each, and their functions.

Owns their text. A condition of a trigger is read anew from its text for each statement that writes, which takes longer
the longer it is: so it says only which rows the interest may be about, and the function says the rest. What is read of
a row is read there behind a guard: if a column is gone or has another name, the change is told as lost, and the write
goes on. Row triggers fire after the row is locked, so the numbers of changes follow the locks.

Where all inserted rows are wanted, one call for the whole statement captures them. It comes after the row triggers, and
that is in order: no statement changes a row that it inserts. Only a row trigger fires for what a subscription applies,
and for rows that come to a partition through the whole table. So the first has one that fires only there, and a
partitioned table and its partitions have nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.changes.conditions import Conditions
from penstock.changes.interest import Interest
from penstock.store.changes import Source
from penstock.store.contract import Statement
from penstock.store.dialect import row_of
from penstock.store.postgres.dialect import POSTGRES

_UNLIKE = "pg_catalog.record_image_ne"
_PLAIN = frozenset({"smallint", "integer", "bigint", "uuid", "boolean", "date"})  # whose equal values are alike
_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_PIECE = 40  # columns in one call of a function, which takes a hundred arguments

# Each statement of a function costs every transaction that runs it, so each event has a function of its own. Those that
# only read columns name everything in full. One that asks conditions has the search path that the conditions of the
# triggers were read with, so that both mean the same by an operator's name.
_FUNCTION = """
create or replace function {function}() returns trigger language plpgsql security definer {settings}as $penstock$
declare
    told pg_catalog.text; row_key pg_catalog.text; row_before pg_catalog.text; row_after pg_catalog.text;
begin
{body}
    return null;
end $penstock$"""
_GUARDED = """
    begin
        {read}
    exception when others then
        {append} 'lost', null, null, null);
        return null;
    end;
"""
_MOVED = """
    if told = 'moved' then
        if {was} then
            {gone}
        end if;
        if {is_now} then
            {came}
        end if;
        return null;
    end if;
"""
_ALL = """
    if tg_level = 'STATEMENT' then
        begin
            if not exists (select {values} from penstock_rows r) then
                return null;
            end if;
        exception when others then
            {append} 'lost', null, null, null);
            return null;
        end;
        {into}select penstock.current_slot(), (select {xid}), {id}, (select {now}), 'enter', {values}
        from penstock_rows r;
        return null;
    end if;
"""
_INTO = "insert into penstock.change (slot, xid, interest, changed_at, kind, key, before, after) "
_XID, _NOW = "pg_catalog.pg_current_xact_id()::pg_catalog.text::pg_catalog.int8", "pg_catalog.clock_timestamp()"
_APPEND = f"{_INTO}values (penstock.current_slot(), {_XID}, {{id}}, {_NOW},"
_SPELLED = {
    ("real", "double precision"): "extra_float_digits = 1",  # all digits
    ("interval",): "intervalstyle = postgres",
}
_ZONED = "timestamp with time zone"
EACH = "create or replace function penstock.{0}() returns void language sql as ''"  # it is there, and that says it all
EVENTS = ("insert", "update", "delete", "truncate")
_ENABLED = {"A": "always", "R": "replica", "O": ""}


class Trigger(NamedTuple):
    """A trigger: what follows its name, and for which sessions it fires, as the catalog says it."""

    text: str
    enabled: str = "A"  # also for sessions that apply what others have written, and would fire no trigger


def triggers(number: int, interest: Interest, found: Mapping[str, Any]) -> dict[tuple[str, str], Trigger]:
    """The triggers of an interest by table and name."""
    table = POSTGRES.table(interest.table)
    conditions = conditions_of(interest)
    when = dict.fromkeys(_wanted_events(interest, conditions), "")
    for event, row in (("insert", "new"), ("delete", "old")):
        if event in when:
            when[event] = conditions.may_match(row)
    if "update" in when:
        when["update"] = conditions.may_update()
    made = {
        (table, f"penstock_change_{number}_{event}"): Trigger(
            f"after {event} on {table} for each row "
            f"{f'when ({condition}) ' if condition else ''}execute function {function_name(number, event)}()"
        )
        for event, condition in when.items()
    }
    if when.get("insert") == "" and found["alone"]:
        call = f"execute function {function_name(number, 'insert')}()"
        made[table, f"penstock_change_{number}_insert"] = Trigger(
            f"after insert on {table} referencing new table as penstock_rows for each statement {call}", "O"
        )
        made[table, f"penstock_change_{number}_applied"] = Trigger(f"after insert on {table} for each row {call}", "R")
    if interest.wants("truncate"):  # that of a partition alone fires none of the whole table's triggers
        call = f"execute function {function_name(number, 'truncate')}()"
        for relation in (table, *(found["partitions"] or ())):
            made[relation, f"penstock_change_{number}_truncate"] = Trigger(
                f"after truncate on {relation} for each statement {call}"
            )
    return made


def install(number: int, interest: Interest, found: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """The statements that make an interest's triggers, or make them anew.

    Those that are left on a table which had the name before, or on one that is no partition any more, are dropped.

    Args:
        number: The interest's number.
        interest: The interest.
        found: What is there of its table: the SQL types of its columns, its partitions as SQL, whether it is none and
            has none, the interest's triggers, and how the function is named that says of the table that each of its
            changes counts.
        path: The schemas in which names are looked for, as SQL.
    """
    types, partitions = found["columns"], found["partitions"] or ()
    made = triggers(number, interest, found)
    table = POSTGRES.table(interest.table)
    left = [one for one in found["triggers"] or () if not one["here"] or (table, one["name"]) not in made]
    trial = f"penstock_change_{number}_trial"
    asked = conditions_of(interest).update()
    call = f"execute function {function_name(number, 'update')}()"
    everywhere = {name: trigger for (relation, name), trigger in made.items() if relation == table}
    fires = [*made.items(), *(((part, name), one) for name, one in everywhere.items() for part in partitions)]
    return (
        *functions(number, interest, types, path),
        *(f"drop trigger if exists {one['name']} on {one['table']}" for one in left),
        # What a function says is looked at when it runs, what a trigger says when it is made.
        *((f"create trigger {trial} after update on {table} for each row when ({asked}) {call}",) if asked else ()),
        *((f"drop trigger {trial} on {table}",) if asked else ()),
        *(f"drop trigger if exists {name} on {relation}" for relation, name in made),
        *(f"create trigger {name} {trigger.text}" for (_relation, name), trigger in made.items()),
        *((EACH.format(found["each"]),) if interest.each else ()),
        *(f"alter table {relation} enable {_ENABLED[one.enabled]} trigger {name}" for (relation, name), one in fires),
    )


def functions(number: int, interest: Interest, types: Mapping[str, str], path: str) -> list[str]:
    """The statements that make the functions which the triggers call."""
    append = _APPEND.format(id=number)
    bodies = {
        "insert": ("" if interest.matches else _all(append, number, interest, types))
        + _told(
            append,
            "enter",
            {"row_key": _array("new", interest.key, types), "row_after": _after("new", interest, types)},
        ),
        "update": _updated(append, interest, types),
        "delete": _told(
            append, "delete", {"row_key": _array("old", interest.key, types), "row_before": _before(interest, types)}
        ),
        "truncate": f"    {append} 'truncate', null, null, null);",
    }
    spelling = _spelling(interest, types)
    settings = {"update": spelling + _settings(interest, path), "truncate": ""}
    return [
        _FUNCTION.format(function=function_name(number, event), settings=settings.get(event, spelling), body=body)
        for event, body in bodies.items()
    ]


def _settings(interest: Interest, path: str) -> str:
    """What a function that asks conditions is told, as the session that writes may have been told otherwise."""
    asked = _asked(interest)
    pinned = f"set search_path = pg_catalog, {path}{', ' if path else ''}pg_temp " if asked else ""
    return pinned + ("set standard_conforming_strings = on " if "\\" in asked else "")


def _asked(interest: Interest) -> str:
    """The conditions of an interest, as SQL that others wrote."""
    return " ".join((interest.matches or "", *(interest.watches or ()))).strip()


def _spelling(interest: Interest, types: Mapping[str, str]) -> str:
    """What a function is told of how values become text, which the session that writes may have otherwise."""
    captured = [types[column] for column in interest.columns]
    return "".join(
        f"set {setting} " for of, setting in _SPELLED.items() if any(type_name.startswith(of) for type_name in captured)
    )


def function_name(number: int, event: str) -> str:
    """The function that a trigger of an interest calls."""
    return f"penstock.change_{number}_{event}"


def _all(append: str, number: int, interest: Interest, types: Mapping[str, str]) -> str:
    """Tell of all rows that a statement has inserted."""
    values = f"{_array('r', interest.key, types)}, null, {_after('r', interest, types) or 'null'}"
    return _ALL.format(append=append, into=_INTO, xid=_XID, id=number, now=_NOW, values=values)


def _told(append: str, kind: str, read: Mapping[str, str]) -> str:
    """Tell of a change whose kind is known."""
    values = ", ".join(name if read.get(name) else "null" for name in ("row_key", "row_before", "row_after"))
    return f"{_guarded(append, read)}    {append} '{kind}', {values});"


def _updated(append: str, interest: Interest, types: Mapping[str, str]) -> str:
    """Tell of an update, of which the trigger has seen that it is wanted. A changed key is two rows."""
    conditions = conditions_of(interest, types)
    was, is_now = conditions.matches("old") or "true", conditions.matches("new") or "true"
    read = {
        "told": f"{conditions.kind()}; if told is null then return null; end if",
        "row_key": _array("new", interest.key, types),
        "row_before": _before(interest, types),
        "row_after": _after("new", interest, types),
    }
    values = ", ".join(name if read[name] else "null" for name in ("row_key", "row_before", "row_after"))
    before = "row_before" if read["row_before"] else "null"
    gone = f"{append} 'delete', {_array('old', interest.key, types)}, {before}, null);"
    came = f"{append} 'enter', {values});"
    moved = _MOVED.format(
        was=was,
        is_now=is_now,
        gone=gone if interest.wants("delete") else "null;",
        came=came if interest.wants("enter") else "null;",
    )
    return f"{_guarded(append, read)}{moved}    {append} told, {values});"


def _guarded(append: str, read: Mapping[str, str]) -> str:
    """Read a row; if that fails, tell that a change was lost."""
    steps = " ".join(f"{name} := {value};" for name, value in read.items() if value)
    return _GUARDED.format(read=steps, append=append)


def source(interest: Interest, types: Mapping[str, str], held: str = "") -> Source:
    """How the rows are read that an interest is about. Of a session with other settings they are spelled alike."""
    asked = conditions_of(interest).matches("r")
    table, spelled = POSTGRES.table(interest.table), _array("r", interest.key, types)
    key = row_of([f"r.{POSTGRES.quote(name)}" for name in interest.key])
    columns = [f"r.{POSTGRES.quote(name)}" for name in interest.place]
    place, known = row_of(columns), " and ".join(f"{column} is not null" for column in columns)
    after = [f"($1::json ->> {number})::{types[name]}" for number, name in enumerate(interest.place)]
    each = [_given(number, types[name]) for number, name in enumerate(interest.key)]
    values = [spelled, *(_object("r", side, types) or "null" for side in (interest.after, interest.before))]
    select = f"select {', '.join(values)} from {table} r where "
    of_place = f"select {', '.join(values)}, {_array('r', interest.place, types)} from {table} r where "
    order, also = f"order by {', '.join(columns)} limit", f"{asked} and " if asked else ""
    among = f"{key} in (select {', '.join(each)} from json_array_elements($1::json) as k (value))"
    return Source(
        first=Statement(f"{of_place}{also}{known} {order} $1{held}"),
        following=Statement(f"{of_place}{also}{known} and {place} > {row_of(after)} {order} $2{held}"),
        among=Statement(f"{select}{also}{among}"),
        keys=Statement(f"select {spelled} from {table} r where {among}"),
        passed=Statement(_passed(interest, types)),
    )


def _passed(interest: Interest, types: Mapping[str, str]) -> str:
    """Which captured rows are not behind a place, compared as the columns of the table are, with their collations."""
    named = [f"c{number}" for number in range(len(interest.place))]
    columns = ", ".join(f"r.{POSTGRES.quote(name)}" for name in interest.place)
    given = ", ".join(f"(g.value ->> {literal(name)})::{types[name]}" for name in interest.place)
    place = [f"($2::json ->> {number})::{types[name]}" for number, name in enumerate(interest.place)]
    return (
        f"select o.number - 1 from (select null::bigint, {columns} from {POSTGRES.table(interest.table)} r where false "
        f"union all select g.number, {given} from json_array_elements($1::json) with ordinality as g (value, number)) "
        f"as o (number, {', '.join(named)}) where {row_of([f'o.{name}' for name in named])} <= {row_of(place)}"
    )


def _given(place: int, kind: str) -> str:
    """A value of one of many keys. Records of a table that was declared with another key may hold no such value."""
    value = f"(k.value ->> {place})::{kind}"
    return f"case when json_typeof(k.value -> {place}) = 'number' then {value} end" if kind in _INTEGERS else value


def _before(interest: Interest, types: Mapping[str, str]) -> str:
    return _object("old", interest.before, types)


def _after(row: str, interest: Interest, types: Mapping[str, str]) -> str:
    return _object(row, interest.after, types)


def conditions_of(interest: Interest, types: Mapping[str, str] | None = None) -> Conditions:
    """When to capture. Rows and keys are compared byte by byte: some types have no equality, and equal is not alike.

    Args:
        interest: The interest.
        types: The SQL types of the table's columns, if what is said with them is read where `_settings` holds.
    """
    pinned = types if types is not None and _asked(interest) else {}
    return Conditions(
        interest, "is distinct from", lambda columns: _unlike(columns, pinned), f"{_UNLIKE}(old.*, new.*)"
    )


def _unlike(columns: Sequence[str], types: Mapping[str, str]) -> str:
    known = [types.get(column, "") for column in columns]
    if all(name in _PLAIN or name == "text" for name in known):  # quicker, and the same
        collate = {"text": ' collate pg_catalog."C"'}
        return " or ".join(
            f"old.{POSTGRES.quote(column)}{collate.get(name, '')} is distinct from new.{POSTGRES.quote(column)}"
            for column, name in zip(columns, known, strict=True)
        )
    old, new = (", ".join(f"{row}.{POSTGRES.quote(column)}" for column in columns) for row in ("old", "new"))
    return f"{_UNLIKE}(row({old}), row({new}))"


def _wanted_events(interest: Interest, conditions: Conditions) -> list[str]:
    wanted = {
        "insert": interest.wants("enter"),
        "update": bool(conditions.update()),
        "delete": interest.wants("delete"),
    }
    return [event for event, is_wanted in wanted.items() if is_wanted]


def _array(row: str, columns: Sequence[str], types: Mapping[str, str]) -> str:
    values = ", ".join(_value(row, column, types) for column in columns)
    return f"pg_catalog.json_build_array({values})::pg_catalog.text"


def _object(row: str, columns: Sequence[str], types: Mapping[str, str]) -> str:
    """Columns as a JSON object, in pieces if they are many; empty if there are none."""
    if not columns:
        return ""
    pieces = []
    for start in range(0, len(columns), _PIECE):
        pairs = (f"{literal(column)}, {_value(row, column, types)}" for column in columns[start : start + _PIECE])
        pieces.append(f"json_build_object({', '.join(pairs)})")
    if len(pieces) == 1:
        return f"pg_catalog.{pieces[0]}::pg_catalog.text"
    joined = " operator(pg_catalog.||) ".join(f"pg_catalog.{piece}::pg_catalog.jsonb" for piece in pieces)
    return f"({joined})::pg_catalog.text"


def _value(row: str, column: str, types: Mapping[str, str]) -> str:
    """A column as JSON takes it, whatever the settings of the session that writes."""
    value = f"{row}.{POSTGRES.quote(column)}"
    if types[column].startswith("timestamp") and types[column].endswith("with time zone"):
        return f"pg_catalog.timezone('UTC', {value})"
    if types[column] == "bytea":
        hex_digits = f"pg_catalog.encode({value}, 'hex')"
        return f"pg_catalog.chr(92) operator(pg_catalog.||) 'x' operator(pg_catalog.||) {hex_digits}"
    return value


def lost(number: int) -> str:
    """Tells the reader of an interest that changes may have been missed."""
    return f"{_APPEND.format(id=number)} 'lost', null, null, null)"


def literal(text: str) -> str:
    """Text as an SQL literal, however the session that reads it takes backslashes."""
    quoted = text.replace("'", "''").replace("\\", "\\\\")
    return f"E'{quoted}'" if "\\" in text else f"'{quoted}'"


def key_text(row: str, types: Mapping[str, str]) -> str:
    """What spells the key of a row as its triggers do, from the types that are declared: times may have no zone."""
    values = (_time(row, name) if kind == _ZONED else _value(row, name, types) for name, kind in types.items())
    return f"pg_catalog.json_build_array({', '.join(values)})::pg_catalog.text"


def _time(row: str, column: str) -> str:
    value, kind = f"{row}.{POSTGRES.quote(column)}", f"{_ZONED!r}::pg_catalog.regtype"
    in_utc = f"pg_catalog.to_json(pg_catalog.timezone('UTC', {value}))"
    return f"case when pg_catalog.pg_typeof({value}) = {kind} then {in_utc} else pg_catalog.to_json({value}) end"
