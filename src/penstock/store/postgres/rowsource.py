"""How the rows of an interest are read, spelled as its triggers spell them."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.changes.conditions import When, all_of
from penstock.changes.interest import Interest
from penstock.store.contract.changes import Source
from penstock.store.contract.session import Statement
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.spelling import PostgresFeedSpelling, literal
from penstock.store.postgres.triggerbodies import conditions_of
from penstock.store.sql.dialect import row_of

_INTEGERS = frozenset({"smallint", "integer", "bigint"})


def source(interest: Interest, types: Mapping[str, str], held: str = "") -> Source:
    """How the rows of an interest are read; spelled alike whatever the settings of the session."""
    match, spelling = conditions_of(interest).exact_match("r"), PostgresFeedSpelling(types)
    table, spelled = POSTGRES.table(interest.table), spelling.array("r", interest.key)
    key = row_of([f"r.{POSTGRES.quote(name)}" for name in interest.key])
    columns = [f"r.{POSTGRES.quote(name)}" for name in interest.place]
    place, known = row_of(columns), " and ".join(f"{column} is not null" for column in columns)
    after = [f"($1::json ->> {number})::{types[name]}" for number, name in enumerate(interest.place)]
    each = [_given(number, types[name]) for number, name in enumerate(interest.key)]
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
        passed=Statement(_passed(interest, types)),
    )


def _passed(interest: Interest, types: Mapping[str, str]) -> str:
    """Which captured rows are not behind a place, by the types and collations of the columns."""
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
    """A value of a key; NULL if a record holds another type, as the table was declared with another key then."""
    value = f"(k.value ->> {place})::{kind}"
    return f"case when json_typeof(k.value -> {place}) = 'number' then {value} end" if kind in _INTEGERS else value
