"""The triggers that capture what an interest wants, as SQL: one function and up to four triggers for each.

Owns their text. A row of no interest costs the triggers' conditions and nothing else. What is read of a row is read in
the function, behind a guard: if a column is gone or has another name, the change is told as lost, and the write goes
on. Row triggers fire after the row is locked, so the numbers of changes follow the locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.changes.conditions import Conditions
from penstock.changes.interest import Interest
from penstock.store.postgres.dialect import POSTGRES

_PIECE = 40  # columns in one call of a function, which takes a hundred arguments

# The search path is that of the conditions of the triggers, so that both mean the same by an operator's name.
_FUNCTION = """
create or replace function {function}() returns trigger language plpgsql security definer
set search_path = pg_catalog, {path}pg_temp as $penstock$
declare
    was boolean; is_now boolean; moved boolean;
    told text; row_key text; row_before text; row_after text; gone_key text; gone_before text;
begin
    if tg_op = 'TRUNCATE' then
        told := 'truncate';
    else
        begin
            if tg_op = 'INSERT' then
                told := 'enter'; row_key := {new_key}; row_after := {after};
            elsif tg_op = 'DELETE' then
                told := 'delete'; row_key := {old_key}; row_before := {before};
            else
                was := {was}; is_now := {is_now}; moved := {moved};
                if moved and was and {wants_delete} then
                    gone_key := {old_key}; gone_before := {before};
                end if;
                if moved then
                    told := case when is_now and {wants_enter} then 'enter' end;
                else
                    told := case when is_now and was then 'change' when is_now then 'enter' else 'leave' end;
                end if;
                row_key := {new_key}; row_before := {before}; row_after := {after};
            end if;
        exception when others then
            told := 'lost'; row_key := null; row_before := null; row_after := null; gone_key := null;
        end;
    end if;
    if gone_key is not null then
        {append} 'delete', gone_key, gone_before, null from penstock.change_slot s;
    end if;
    if told is not null then
        {append} told, row_key, row_before, row_after from penstock.change_slot s;
    end if;
    return null;
end $penstock$"""
_APPEND = (
    "insert into penstock.change (slot, xid, interest, changed_at, kind, key, before, after) "
    "select s.slot, pg_catalog.pg_current_xact_id()::text::bigint, {id}, pg_catalog.clock_timestamp(),"
)


def triggers(number: int, interest: Interest, partitions: Sequence[str]) -> dict[tuple[str, str], str]:
    """The triggers of an interest by table and name: what follows the name and ``on`` the table."""
    table = POSTGRES.table(interest.table)
    conditions = conditions_of(interest)
    when = dict.fromkeys(_wanted_events(interest, conditions), "")
    for event, row in (("insert", "new"), ("delete", "old")):
        if event in when:
            when[event] = conditions.matches(row)
    if "update" in when:
        when["update"] = conditions.update()
    call = f"execute function penstock.change_{number}()"
    made = {
        (table, f"penstock_change_{number}_{event}"): f"after {event} on {{table}} for each row "
        f"{f'when ({condition}) ' if condition else ''}{call}"
        for event, condition in when.items()
    }
    if interest.wants("truncate"):  # that of a partition alone fires none of the whole table's triggers
        for relation in (table, *partitions):
            made[relation, f"penstock_change_{number}_truncate"] = (
                f"after truncate on {{table}} for each statement {call}"
            )
    return {(relation, name): text.replace("{table}", relation) for (relation, name), text in made.items()}


def install(
    number: int, interest: Interest, types: Mapping[str, str], partitions: Sequence[str], path: str
) -> tuple[str, ...]:
    """The statements that make an interest's triggers, or make them anew.

    Args:
        number: The interest's number.
        interest: The interest.
        types: The SQL types of the table's columns.
        partitions: Its partitions, as SQL.
        path: The schemas in which names are looked for, as SQL.
    """
    made = triggers(number, interest, partitions)
    table = POSTGRES.table(interest.table)
    everywhere = [(part, name) for relation, name in made if relation == table for part in partitions]
    return (
        function(number, interest, types, path),
        *(f"drop trigger if exists {name} on {relation}" for relation, name in made),
        *(f"create trigger {name} {text}" for (_relation, name), text in made.items()),
        # Also for sessions that apply what others have written, and would fire no trigger.
        *(f"alter table {relation} enable always trigger {name}" for relation, name in (*made, *everywhere)),
    )


def function(number: int, interest: Interest, types: Mapping[str, str], path: str) -> str:
    """The statement that makes the function which the triggers call."""
    conditions = conditions_of(interest)
    return _FUNCTION.format(
        function=f"penstock.change_{number}",
        path=f"{path}, " if path else "",
        append=_APPEND.format(id=number),
        new_key=_array("new", interest.key, types),
        old_key=_array("old", interest.key, types),
        before=_object("old", interest.before, types),
        after=_object("new", interest.after, types),
        was=conditions.matches("old") or "true",
        is_now=conditions.matches("new") or "true",
        moved=conditions.moved(),
        wants_delete=str(interest.wants("delete")).lower(),
        wants_enter=str(interest.wants("enter")).lower(),
    )


def conditions_of(interest: Interest) -> Conditions:
    """When to capture. Rows are compared byte by byte, as not all types can be compared."""
    return Conditions(interest, POSTGRES.quote, "is distinct from", "old.* operator(pg_catalog.*<>) new.*")


def _wanted_events(interest: Interest, conditions: Conditions) -> list[str]:
    wanted = {
        "insert": interest.wants("enter"),
        "update": bool(conditions.update()),
        "delete": interest.wants("delete"),
    }
    return [event for event, is_wanted in wanted.items() if is_wanted]


def _array(row: str, columns: Sequence[str], types: Mapping[str, str]) -> str:
    values = ", ".join(_value(row, column, types) for column in columns)
    return f"pg_catalog.json_build_array({values})::text"


def _object(row: str, columns: Sequence[str], types: Mapping[str, str]) -> str:
    """Columns as a JSON object, in pieces if they are many."""
    if not columns:
        return "null"
    pieces = []
    for start in range(0, len(columns), _PIECE):
        pairs = (f"{literal(column)}, {_value(row, column, types)}" for column in columns[start : start + _PIECE])
        pieces.append(f"json_build_object({', '.join(pairs)})")
    if len(pieces) == 1:
        return f"pg_catalog.{pieces[0]}::text"
    return f"({' || '.join(f'pg_catalog.{piece}::jsonb' for piece in pieces)})::text"


def _value(row: str, column: str, types: Mapping[str, str]) -> str:
    """A column as JSON takes it, whatever the settings of the session that writes."""
    value = f"{row}.{POSTGRES.quote(column)}"
    if types[column].startswith("timestamp") and types[column].endswith("with time zone"):
        return f"pg_catalog.timezone('UTC', {value})"
    if types[column] == "bytea":
        return f"pg_catalog.chr(92) || 'x' || pg_catalog.encode({value}, 'hex')"
    return value


def literal(text: str) -> str:
    """Text as an SQL literal, however the session that reads it takes backslashes."""
    quoted = text.replace("'", "''").replace("\\", "\\\\")
    return f"E'{quoted}'" if "\\" in text else f"'{quoted}'"
