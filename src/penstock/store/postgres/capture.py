"""The triggers and functions that capture a table for all interests in it, and the statements that read its rows.

One row of the feed tells all interests of a write. PostgreSQL parses a trigger's condition for each statement that
writes, so the condition is short. It is true for every row that an interest may be about. The function is exact. The
function reads the row behind a guard. If a column is gone, each interest is told by itself, or that a change was lost,
and the write goes on. Row triggers fire after the row is locked, so the numbers of changes follow the locks.

PostgreSQL fires triggers in the order of their names. These begin with `_`, so that they come before a trigger of the
user's that writes its row again.

Where all inserted rows are wanted, one call for each statement captures them, after the row triggers:
- A user's row trigger may change the row before, so such a table is captured row by row.
- Rows applied by a subscription fire row triggers only, so there is one more that fires only for these.
- Rows reach a partition through the whole table, so partitions and partitioned tables are captured row by row.

The triggers of an interest on demand first ask a sequence, which holds the number of the transaction from which on
nothing is captured. A snapshot does not matter to a sequence, and reading it is no read that could conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from penstock.changes.conditions import ALWAYS, NEVER, When, all_of, any_of
from penstock.changes.interest import Interest
from penstock.store.nouns.captures import FoundTable, Interests
from penstock.store.nouns.interests import Source
from penstock.store.postgres.conditions import literal
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.spelling import PostgresFeedSpelling
from penstock.store.postgres.triggerbodies import FunctionBody, append_plain, conditions_of
from penstock.store.session import Statement
from penstock.store.sql.dialect import qualify, row_of
from penstock.store.sql.feedrow import kind_variable

# Each statement of a function costs every transaction that runs it, so each event has a function of its own. Functions
# that only read columns name everything in full. One that asks conditions has the search path that the triggers'
# conditions were read with. So both mean the same by an operator's name.
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
SPELLED = {
    ("real", "double precision"): "extra_float_digits = 1",  # all digits
    ("interval",): "intervalstyle = postgres",
    ("timestamp with time zone[", "tstz"): "timezone = 'UTC'",
    ("daterange", "datemulti", "ts"): "datestyle = 'ISO'",
}
EACH = "create or replace function penstock.{0}() returns void language sql as ''"  # it is there, and that says it all
_DEMAND = (
    "create sequence if not exists penstock.demand_{0}",
    "grant usage on sequence penstock.demand_{0} to public",  # each writer of a row reads it
)
EVENTS = ("insert", "update", "delete", "truncate")
_KEPT = 128
_Numbered = tuple[tuple[int, Interest], ...]
_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_ENABLED = {"A": "always", "R": "replica", "O": ""}


class Own(NamedTuple):
    """The triggers of one capture: penstock's schema, and their number there."""

    schema: str
    number: int

    def trigger(self, event: str) -> str:
        """The name of a trigger."""
        return qualify(f"_penstock_change_{self.number}_{event}", self.schema)

    def function(self, event: str) -> str:
        """The function that a trigger calls."""
        return qualify(f"penstock.change_{self.number}_{event}", self.schema)


class Trigger(NamedTuple):
    """A trigger: the SQL behind its name, and the sessions for which it fires, as the catalog says it."""

    text: str
    enabled: str = "A"  # also for sessions that apply the changes of a subscription


def triggers(own: Own, interests: Interests, found: FoundTable) -> dict[tuple[str, str], Trigger]:
    """The triggers of all interests in a table, by table and name."""
    by_statement = found.plain and found.ordered
    return dict(_triggers(own, tuple(interests.items()), tuple(found.partitions), by_statement=by_statement))


@lru_cache(_KEPT)  # whether they are there is asked several times when a program starts
def _triggers(
    own: Own, numbered: _Numbered, partitions: tuple[str, ...], *, by_statement: bool
) -> Mapping[tuple[str, str], Trigger]:
    interests = dict(numbered)
    table = POSTGRES.table(numbered[0][1].table)
    calls = {event: f"execute function {own.function(event)}()" for event in EVENTS}
    when = {event: any_of(*(_condition(one, event) for one in interests.values())) for event in EVENTS}
    demanded = _on_demand(own, interests)
    asked = {event: all_of(demanded, one.in_parentheses) for event, one in when.items()}
    calls |= {event: f"when ({one.sql}) {calls[event]}" for event, one in asked.items() if one.is_asked}
    made = {
        (table, own.trigger(event)): Trigger(f"after {event} on {table} for each row {calls[event]}")
        for event in ("insert", "update", "delete")
        if when[event] != NEVER
    }
    if when["insert"] == ALWAYS and by_statement:
        made[table, own.trigger("insert")] = Trigger(
            f"after insert on {table} referencing new table as penstock_rows for each statement {calls['insert']}", "O"
        )
        made[table, own.trigger("applied")] = Trigger(f"after insert on {table} for each row {calls['insert']}", "R")
    if when["truncate"] == ALWAYS:  # truncating a partition alone fires none of the whole table's triggers
        made |= {
            (relation, own.trigger("truncate")): Trigger(
                f"after truncate on {relation} for each statement {calls['truncate']}"
            )
            for relation in (table, *partitions)
        }
    return made


def install(own: Own, interests: Interests, found: FoundTable, path: str, asked: Sequence[Interest]) -> tuple[str, ...]:
    """The statements that make the triggers of a table, or make them again.

    Triggers on a table which had the name before, or on one that is no partition any more, are dropped.

    The conditions of `asked` are tried out. `path` holds the schemas in which names are looked for, as SQL.
    """
    made, numbered = triggers(own, interests, found), tuple(interests.items())
    table = POSTGRES.table(numbered[0][1].table)
    left = [one for one in found.triggers if not one.here or (table, one.name) not in made]
    said = [one for one in asked if one.matches or one.watches]
    trial = own.trigger("trial")
    fires = [*made.items()]
    fires += [((part, name), one) for (of, name), one in made.items() if of == table for part in found.partitions]
    return (
        *(qualify(text.format(own.number), own.schema) for text in _DEMAND if _on_demand(own, interests) != ALWAYS),
        *(_function(own, event, numbered, tuple(found.columns.items()), path) for event in EVENTS),
        *(f"drop trigger if exists {one.name} on {one.table}" for one in left),
        *((_trial(own, table, said), f"drop trigger {trial} on {table}") if said else ()),
        *(f"drop trigger if exists {name} on {relation}" for relation, name in made),
        *(f"create trigger {name} {trigger.text}" for (_relation, name), trigger in made.items()),
        *((qualify(EACH.format(found.each), own.schema),) if any(one.each for one in interests.values()) else ()),
        *_enable(fires),
    )


def _enable(fires: Iterable[tuple[tuple[str, str], Trigger]]) -> Iterator[str]:
    """The statements by which triggers fire in their sessions: one for each table, which is read again after each."""
    actions = dict[str, list[str]]()
    for (relation, name), one in fires:
        actions.setdefault(relation, []).append(f"enable {_ENABLED[one.enabled]} trigger {name}")
    return (f"alter table {relation} {', '.join(each)}" for relation, each in actions.items())


def try_out(own: Own, asked: Sequence[Interest]) -> tuple[str, ...]:
    """The statements by which PostgreSQL says whether it takes triggers for interests in one table."""
    function = _FUNCTION.format(function=own.function("update"), settings="", kinds="", body="")
    return function, _trial(own, POSTGRES.table(asked[0].table), asked)


def trial(own: Own, interest: Interest) -> str:
    """The statements by which PostgreSQL says whether it takes the conditions of an interest that shares triggers."""
    table = POSTGRES.table(interest.table)
    return f"{_trial(own, table, [interest])}; drop trigger {own.trigger('trial')} on {table}"


def _trial(own: Own, table: str, asked: Sequence[Interest]) -> str:
    """A trigger that asks all conditions: PostgreSQL checks the SQL of a trigger when it makes it."""
    tried = any_of(*(conditions_of(one).exact_update() for one in asked))
    when = f"when ({tried.sql}) " if tried.is_asked else ""
    call = f"execute function {own.function('update')}()"
    return f"create trigger {own.trigger('trial')} after update on {table} for each row {when}{call}"


def hold(own: Own, numbers: Sequence[int], of: str, found: FoundTable) -> Iterator[str]:
    """The statements that replace a table's triggers by such that name no column, and tell that a change was lost."""
    table, function = POSTGRES.table(of), own.function("truncate")
    yield from (f"drop trigger if exists {one.name} on {one.table}" for one in found.triggers)
    yield _FUNCTION.format(function=function, settings="", kinds="", body=append_plain(own.schema, numbers, "lost"))
    name, each = own.trigger("held"), "statement" if found.plain else "row"
    made = [(name, f"after insert or update or delete on {table} for each {each}", table)]
    parts = (table, *found.partitions)
    made += [(f"{name}_truncate", f"after truncate on {one} for each statement", one) for one in parts]
    for trigger, when, relation in made:
        yield f"create trigger {trigger} {when} execute function {function}()"
        yield f"alter table {relation} enable always trigger {trigger}"


@lru_cache(4 * _KEPT)  # programs that start again and again, as in tests, make the same
def _function(own: Own, event: str, numbered: _Numbered, columns: tuple[tuple[str, str], ...], path: str) -> str:
    """The function of one event. Its settings are its own, as the writing session may have others."""
    types = dict(columns)
    wanting = {number: one for number, one in numbered if _condition(one, event) != NEVER}
    body, settings, kinds = "", "", ""
    if wanting and event == "truncate":
        body = append_plain(own.schema, wanting, event)
    elif wanting:
        trigger_asks = len(wanting) == 1 and event != "update"
        asked = "" if trigger_asks else _user_sql(wanting.values(), event)
        settings = _spelling(wanting.values(), types) + _settings(asked, path)
        writer = FunctionBody(own.schema, wanting, types, path_is_set=bool(asked), trigger_asks=trigger_asks)
        body = {"insert": writer.on_insert, "update": writer.on_update, "delete": writer.on_delete}[event]()
        if event == "insert" and any_of(*(_condition(one, event) for one in wanting.values())) == ALWAYS:
            body = _STATEMENT.format(told=writer.on_insert_rows()) + body
        kinds = "".join(f" {kind_variable(number)} pg_catalog.text;" for number in wanting if event == "update")
    return _FUNCTION.format(function=own.function(event), settings=settings, kinds=kinds, body=body)


def _on_demand(own: Own, interests: Interests) -> When:
    """Whether the writing transaction is captured: always, unless it is for an interest on demand."""
    if not any(one.on_demand for one in interests.values()):
        return ALWAYS
    return When(qualify(f"txid_current() < pg_sequence_last_value('penstock.demand_{own.number}')", own.schema))


def _condition(interest: Interest, event: str) -> When:
    """The condition on which an event fires the trigger for an interest; at least for the writes that it wants."""
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


def _user_sql(interests: Iterable[Interest], event: str) -> str:
    """The conditions that a function asks, as SQL that others wrote."""
    watches = (watch for one in interests for watch in (one.watches or ()) if event == "update")
    return " ".join((*(one.matches or "" for one in interests), *watches)).strip()


def _spelling(interests: Iterable[Interest], types: Mapping[str, str]) -> str:
    captured = [types[column] for one in interests for column in one.columns]
    return "".join(
        f"set {setting} " for of, setting in SPELLED.items() if any(type_name.startswith(of) for type_name in captured)
    )


# ----- reading the rows of an interest, spelled as its triggers spell them


def source(interest: Interest, types: Mapping[str, str], held: str = "") -> Source:
    """The statements that read the rows of an interest; spelled alike with all settings of the session."""
    match, spelling = conditions_of(interest).exact_match("r"), PostgresFeedSpelling(types)
    table, spelled = POSTGRES.table(interest.table), spelling.array("r", interest.key)
    key = row_of([f"r.{POSTGRES.quote(name)}" for name in interest.key])
    columns = [f"r.{POSTGRES.quote(name)}" for name in interest.place]
    place, known = row_of(columns), " and ".join(f"{column} is not null" for column in columns)
    after = [f"($1::json ->> {number})::{types[name]}" for number, name in enumerate(interest.place)]
    each = [_part(number, types[name]) for number, name in enumerate(interest.key)]
    values = ", ".join((spelled, *(spelling.json_object("r", side) for side in (interest.after, interest.before))))
    rows = (
        f"select {values}, {spelling.array('r', interest.place)} from {table} r where {all_of(match, When(known)).sql}"
    )
    order = f"order by {', '.join(columns)} limit"
    among = f"{key} in (select {', '.join(each)} from json_array_elements($1::json) as k (value))"
    return Source(
        first=Statement(f"{rows} {order} $1{held}"),
        following=Statement(f"{rows} and {place} > {row_of(after)} {order} $2{held}"),
        among=Statement(f"select {values} from {table} r where {all_of(match, When(among)).sql}"),
        keys=Statement(f"select {spelled} from {table} r where {among}"),
        passed=Statement(_up_to(interest, types)),
    )


def _up_to(interest: Interest, types: Mapping[str, str]) -> str:
    """A condition for captured rows that are not behind a place, by the types and collations of the columns."""
    named = [f"c{number}" for number in range(len(interest.place))]
    columns = ", ".join(f"r.{POSTGRES.quote(name)}" for name in interest.place)
    given = ", ".join(f"(g.value ->> {literal(name)})::{types[name]}" for name in interest.place)
    place = [f"($2::json ->> {number})::{types[name]}" for number, name in enumerate(interest.place)]
    return (
        f"select o.number - 1 from (select null::bigint, {columns} from {POSTGRES.table(interest.table)} r where false "
        f"union all select g.number, {given} from json_array_elements($1::json) with ordinality as g (value, number)) "
        f"as o (number, {', '.join(named)}) where {row_of([f'o.{name}' for name in named])} <= {row_of(place)}"
    )


def _part(place: int, kind: str) -> str:
    """A value of a key; NULL if a record holds another type, as the table was declared with another key then."""
    value = f"(k.value ->> {place})::{kind}"
    return f"case when json_typeof(k.value -> {place}) = 'number' then {value} end" if kind in _INTEGERS else value
