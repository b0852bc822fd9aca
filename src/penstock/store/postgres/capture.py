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

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.changes.conditions import ALWAYS, NEVER, When, any_of
from penstock.changes.interest import Interest
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.triggerbodies import FunctionBody, append_plain, conditions_of
from penstock.store.rows.interests import FoundTable, Interests
from penstock.store.sql.feedrow import kind_variable

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
_STATEMENT = """
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
    enabled: str = "A"  # also for sessions that apply the changes of a subscription


def triggers(capture: int, interests: Interests, found: FoundTable) -> dict[tuple[str, str], Trigger]:
    """The triggers of all interests in a table, by table and name."""
    table, name = POSTGRES.table(next(iter(interests.values())).table), f"_penstock_change_{capture}_"
    calls = {event: f"execute function {function_name(capture, event)}()" for event in EVENTS}
    when = {event: any_of(*(_condition(one, event) for one in interests.values())) for event in EVENTS}
    made = {
        (table, f"{name}{event}"): Trigger(
            f"after {event} on {table} for each row {f'when ({when[event].sql}) ' if when[event].is_asked else ''}"
            f"{calls[event]}"
        )
        for event in ("insert", "update", "delete")
        if when[event] != NEVER
    }
    if when["insert"] == ALWAYS and found.plain and found.ordered:
        made[table, f"{name}insert"] = Trigger(
            f"after insert on {table} referencing new table as penstock_rows for each statement {calls['insert']}", "O"
        )
        made[table, f"{name}applied"] = Trigger(f"after insert on {table} for each row {calls['insert']}", "R")
    if when["truncate"] == ALWAYS:  # truncating a partition alone fires none of the whole table's triggers
        made |= {
            (relation, f"{name}truncate"): Trigger(
                f"after truncate on {relation} for each statement {calls['truncate']}"
            )
            for relation in (table, *found.partitions)
        }
    return made


def install(
    capture: int, interests: Interests, found: FoundTable, path: str, asked: Sequence[Interest]
) -> tuple[str, ...]:
    """The statements that make the triggers of a table, or make them anew.

    Those that are left on a table which had the name before, or on one that is no partition any more, are dropped.

    The conditions of `asked` are tried out. `path` holds the schemas in which names are looked for, as SQL.
    """
    made = triggers(capture, interests, found)
    table = POSTGRES.table(next(iter(interests.values())).table)
    left = [one for one in found.triggers if not one.here or (table, one.name) not in made]
    tried = any_of(*(conditions_of(one).exact_update() for one in asked))
    trial = f"_penstock_change_{capture}_trial"
    call = f"execute function {function_name(capture, 'update')}()"
    fires = [*made.items()]
    fires += [((part, name), one) for (of, name), one in made.items() if of == table for part in found.partitions]
    return (
        *(_function(capture, event, interests, found.columns, path) for event in EVENTS),
        *(f"drop trigger if exists {one.name} on {one.table}" for one in left),
        *(  # PostgreSQL checks the SQL of a trigger when it is made, and that of a function when it runs.
            (
                f"create trigger {trial} after update on {table} for each row when ({tried.sql}) {call}",
                f"drop trigger {trial} on {table}",
            )
            if tried.is_asked
            else ()
        ),
        *(f"drop trigger if exists {name} on {relation}" for relation, name in made),
        *(f"create trigger {name} {trigger.text}" for (_relation, name), trigger in made.items()),
        *((EACH.format(found.each),) if any(one.each for one in interests.values()) else ()),
        *(f"alter table {relation} enable {_ENABLED[one.enabled]} trigger {name}" for (relation, name), one in fires),
    )


def _function(capture: int, event: str, interests: Interests, types: Mapping[str, str], path: str) -> str:
    """The function of one event. Its settings are its own, as the writing session may have others."""
    wanting = {number: one for number, one in interests.items() if _condition(one, event) != NEVER}
    body, settings, kinds = "", "", ""
    if wanting and event == "truncate":
        body = append_plain(wanting, event)
    elif wanting:
        trigger_asks = len(wanting) == 1 and event != "update"
        asked = "" if trigger_asks else _asked(wanting.values(), event)
        settings = _spelling(wanting.values(), types) + _settings(asked, path)
        writer = FunctionBody(wanting, types, path_is_set=bool(asked), trigger_asks=trigger_asks)
        body = {"insert": writer.inserted, "update": writer.updated, "delete": writer.deleted}[event]()
        if event == "insert" and any_of(*(_condition(one, event) for one in wanting.values())) == ALWAYS:
            body = _STATEMENT.format(told=writer.inserted_rows()) + body
        kinds = "".join(f" {kind_variable(number)} pg_catalog.text;" for number in wanting if event == "update")
    return _FUNCTION.format(function=function_name(capture, event), settings=settings, kinds=kinds, body=body)


def function_name(capture: int, event: str) -> str:
    """The function that a trigger calls."""
    return f"penstock.change_{capture}_{event}"


def _condition(interest: Interest, event: str) -> When:
    """Which writes of an event fire the trigger for an interest; at least those that it wants."""
    conditions = conditions_of(interest)
    if event == "update":
        return conditions.wide_update()
    kind, when = {
        "insert": ("enter", conditions.match_or_null("new")),
        "delete": ("delete", conditions.match_or_null("old")),
        "truncate": ("truncate", ALWAYS),
    }[event]
    return when if interest.wants(kind) else NEVER


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
