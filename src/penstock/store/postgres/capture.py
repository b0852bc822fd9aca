"""The triggers that capture a table for all interests in it, as SQL: one for each event, and their functions.

Owns their text. One row of the feed tells all interests of a write. A condition of a trigger is read anew from its text
for each statement that writes, which takes longer the longer it is: so it says only which rows any interest may be
about, and the function says the rest. What is read of a row is read there behind a guard: if a column is gone or has
another name, each interest is told by itself, or that a change was lost, and the write goes on. Row triggers fire after
the row is locked, so the numbers of changes follow the locks.

A trigger of the user's that writes its row again must come after these. PostgreSQL fires triggers in the order of their
names, so these begin with `_`.

Where all inserted rows are wanted, one call for the whole statement captures them. It comes after the row triggers, and
that is in order: no statement changes a row that it inserts. A row trigger of the user's may, so its table has no such
call. Only a row trigger fires for what a subscription applies,
and for rows that come to a partition through the whole table. So the first has one that fires only there, and a
partitioned table and its partitions have nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock.changes.interest import Interest
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.triggerbodies import Telling, appended, conditions_of, variable
from penstock.store.rows.interests import Interests

# Each statement of a function costs every transaction that runs it, so each event has a function of its own. Those that
# only read columns name everything in full. One that asks conditions has the search path that the conditions of the
# triggers were read with, so that both mean the same by an operator's name.
_FUNCTION = """
create or replace function {function}() returns trigger language plpgsql security definer {settings}as $penstock$
declare
    told_by pg_catalog.text; told_as pg_catalog.text;
    row_key pg_catalog.text; row_before pg_catalog.text; row_after pg_catalog.text;{kinds}
begin
{body}
    return null;
end $penstock$"""
_ALL = """
    if tg_level operator(pg_catalog.=) 'STATEMENT' then
        {told}
        return null;
    end if;
"""
_SPELLED = {
    ("real", "double precision"): "extra_float_digits = 1",  # all digits
    ("interval",): "intervalstyle = postgres",
}
EACH = "create or replace function penstock.{0}() returns void language sql as ''"  # it is there, and that says it all
EVENTS = ("insert", "update", "delete", "truncate")
_ENABLED = {"A": "always", "R": "replica", "O": ""}


class Trigger(NamedTuple):
    """A trigger: what follows its name, and for which sessions it fires, as the catalog says it."""

    text: str
    enabled: str = "A"  # also for sessions that apply what others have written, and would fire no trigger


def triggers(capture: int, interests: Interests, found: Mapping[str, Any]) -> dict[tuple[str, str], Trigger]:
    """The triggers of all interests in a table, by table and name."""
    table = POSTGRES.table(next(iter(interests.values())).table)
    when = {event: _when(interests, event) for event in EVENTS}
    made = {
        (table, f"_penstock_change_{capture}_{event}"): Trigger(
            f"after {event} on {table} for each row "
            f"{f'when ({condition}) ' if condition else ''}execute function {function_name(capture, event)}()"
        )
        for event, condition in when.items()
        if condition is not None and event != "truncate"
    }
    if when["insert"] == "" and found["alone"] and found["ordered"]:
        call = f"execute function {function_name(capture, 'insert')}()"
        made[table, f"_penstock_change_{capture}_insert"] = Trigger(
            f"after insert on {table} referencing new table as penstock_rows for each statement {call}", "O"
        )
        made[table, f"_penstock_change_{capture}_applied"] = Trigger(
            f"after insert on {table} for each row {call}", "R"
        )
    if when["truncate"] is not None:  # that of a partition alone fires none of the whole table's triggers
        call = f"execute function {function_name(capture, 'truncate')}()"
        for relation in (table, *(found["partitions"] or ())):
            made[relation, f"_penstock_change_{capture}_truncate"] = Trigger(
                f"after truncate on {relation} for each statement {call}"
            )
    return made


def install(
    capture: int, interests: Interests, found: Mapping[str, Any], path: str, asked: Interest | None
) -> tuple[str, ...]:
    """The statements that make the triggers of a table, or make them anew.

    Those that are left on a table which had the name before, or on one that is no partition any more, are dropped.

    Args:
        capture: The number in their names.
        interests: The interests.
        found: What is there of the table: the SQL types of its columns, its partitions as SQL, whether it is none and
            has none, its triggers, and the name of the function that says of it that each of its changes counts.
        path: The schemas in which names are looked for, as SQL.
        asked: The interest whose conditions are tried out.
    """
    partitions = found["partitions"] or ()
    made = triggers(capture, interests, found)
    table = POSTGRES.table(next(iter(interests.values())).table)
    left = [one for one in found["triggers"] or () if not one["here"] or (table, one["name"]) not in made]
    trial = f"_penstock_change_{capture}_trial"
    tried = "" if asked is None else conditions_of(asked).update()
    call = f"execute function {function_name(capture, 'update')}()"
    everywhere = {name: trigger for (relation, name), trigger in made.items() if relation == table}
    fires = [*made.items(), *(((part, name), one) for name, one in everywhere.items() for part in partitions)]
    return (
        *(_function(capture, event, interests, found["columns"], path) for event in EVENTS),
        *(f"drop trigger if exists {one['name']} on {one['table']}" for one in left),
        # What a function says is looked at when it runs, what a trigger says when it is made.
        *((f"create trigger {trial} after update on {table} for each row when ({tried}) {call}",) if tried else ()),
        *((f"drop trigger {trial} on {table}",) if tried else ()),
        *(f"drop trigger if exists {name} on {relation}" for relation, name in made),
        *(f"create trigger {name} {trigger.text}" for (_relation, name), trigger in made.items()),
        *((EACH.format(found["each"]),) if any(one.each for one in interests.values()) else ()),
        *(f"alter table {relation} enable {_ENABLED[one.enabled]} trigger {name}" for (relation, name), one in fires),
    )


def _function(capture: int, event: str, interests: Interests, types: Mapping[str, str], path: str) -> str:
    """The function of one event. What it is told of how to read SQL, the session that writes may have otherwise."""
    wanting = {number: one for number, one in interests.items() if _condition(one, event) is not None}
    sure, body, settings = len(wanting) == 1 and event != "update", "", ""
    asked = "" if sure or event == "truncate" else _asked(wanting.values(), event)
    telling = Telling(wanting, types, pinned=bool(asked), sure=sure)
    if wanting and event == "truncate":
        body = appended(wanting, event)
    elif wanting:
        settings = _spelling(wanting.values(), types) + _settings(asked, path)
        body = {"insert": telling.inserted, "update": telling.updated, "delete": telling.deleted}[event]()
        if event == "insert" and _when(interests, event) == "":
            body = _ALL.format(told=telling.rows()) + body
    kinds = "".join(f" {variable(number)} pg_catalog.text;" for number in wanting if event == "update")
    return _FUNCTION.format(function=function_name(capture, event), settings=settings, kinds=kinds, body=body)


def function_name(capture: int, event: str) -> str:
    """The function that a trigger calls."""
    return f"penstock.change_{capture}_{event}"


def _condition(interest: Interest, event: str) -> str | None:
    """Which writes an interest is about; empty for all of an event, None for none."""
    conditions = conditions_of(interest)
    wants = {
        "insert": interest.wants("enter"),
        "update": bool(conditions.update()),
        "delete": interest.wants("delete"),
        "truncate": interest.wants("truncate"),
    }
    if not wants[event] or event == "truncate":
        return "" if wants[event] else None
    return conditions.may_update() if event == "update" else conditions.may_match({"insert": "new"}.get(event, "old"))


def _when(interests: Interests, event: str) -> str | None:
    """The same for some interests together."""
    found = dict.fromkeys(_condition(one, event) for one in interests.values())
    wanted = [condition for condition in found if condition is not None]
    return None if not wanted else "" if "" in wanted else " or ".join(wanted)


def _settings(asked: str, path: str) -> str:
    pinned = f"set search_path = pg_catalog, {path}{', ' if path else ''}pg_temp " if asked else ""
    return pinned + ("set standard_conforming_strings = on " if "\\" in asked else "")


def _asked(interests: Iterable[Interest], event: str) -> str:
    """The conditions that a function asks, as SQL that others wrote."""
    watches = (watch for one in interests for watch in (one.watches or ()) if event == "update")
    return " ".join((*(one.matches or "" for one in interests), *watches)).strip()


def _spelling(interests: Iterable[Interest], types: Mapping[str, str]) -> str:
    captured = [types[column] for one in interests for column in one.columns]
    return "".join(
        f"set {setting} " for of, setting in _SPELLED.items() if any(type_name.startswith(of) for type_name in captured)
    )
