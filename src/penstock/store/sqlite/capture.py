"""The triggers that capture a table for all interests in it, as SQL: one for each event.

One row of the feed tells all interests of a write. Triggers use only what every SQLite has, as other programs fire
them too. That includes collations, so columns are compared without theirs.
Captured values are always JSON. JSON has no bytes and no infinities: these are text whose first
character is written as an escape. The spelling tells them from the same text; a JSON parser does not.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial

from penstock.changes.conditions import ALWAYS, NEVER, Conditions, When, all_of, any_of
from penstock.changes.interest import Interest
from penstock.store.nouns.captures import Interests
from penstock.store.nouns.interests import Source
from penstock.store.session import Statement
from penstock.store.sql.ddl import quote_text
from penstock.store.sql.dialect import qualify, row_of
from penstock.store.sql.feedrow import Conditional, FeedRow, FeedSpelling, kind_variable, wants
from penstock.store.sqlite.dialect import SQLITE

_DEMANDED = "exists (select 1 from penstock_demanded where interest = {})"
_APPEND = "insert into penstock_change (changed_at, interests, kinds, key, before, after)"
_NOW = "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')"
_VALUE = (
    "case typeof({0}) when 'null' then 'null' when 'integer' then cast({0} as text) "
    "when 'real' then case when abs({0}) > 1.7976931348623157e308 "
    "then iif({0} > 0, '\"\\u0049nfinity\"', '\"\\u002dInfinity\"') else printf('%!.20e', {0}) end "
    "when 'blob' then '\"\\u005cx' || lower(hex({0})) || '\"' else json_quote({0}) end"
)
_CHAIN = 40
_UNREADABLE = "char(65533)"  # Python reads it for text that is no UTF-8


class _Spelling(FeedSpelling):
    def join_list(self, values: Sequence[Conditional]) -> str:
        items = (
            f"iif({when.sql}, ',' || {value}, '')" if when.is_asked else f"',' || {value}" for value, when in values
        )
        return f"substr({' || '.join(items)}, 2)"

    def pieces(self, values: Sequence[Conditional]) -> str:
        pieces = (
            "''" if value == "null" else value if when == ALWAYS else f"iif({when.sql}, {value}, '')"
            for value, when in values
        )
        return _join([*pieces], "char(30)")

    def array(self, row: str, columns: Sequence[str]) -> str:
        return _json_array(_value(row, column) for column in columns)

    def json_object(self, row: str, columns: Sequence[str]) -> str:
        if not columns:
            return "null"
        pairs = [f"(json_quote({quote_text(column)}) || ':' || {_value(row, column)})" for column in columns]
        return f"'{{' || {_join(pairs)} || '}}'"


_SPELLING = _Spelling()


def triggers(schema: str, capture: int, interests: Interests, columns: Collection[str]) -> Mapping[str, str]:
    """The statements that make the triggers of all interests in a table with these columns, by name."""
    return _triggers(schema, capture, tuple(interests.items()), tuple(columns))


@lru_cache(128)  # a program tries them out and then makes them; one that starts again, as in tests, makes the same
def _triggers(
    schema: str, capture: int, numbered: Sequence[tuple[int, Interest]], columns: Sequence[str]
) -> Mapping[str, str]:
    interests = dict(numbered)
    asked = {
        # SQLite drops no column that a trigger names, so on demand an update that changes nothing is captured, too.
        number: Conditions(one, "is not", _unlike, ALWAYS.sql if one.on_demand else _unlike(columns))
        for number, one in interests.items()
    }
    inserts = _feed_row("enter", {n: one for n, one in asked.items() if one.interest.wants("enter")}, "new")
    deletes = _feed_row("delete", {n: one for n, one in asked.items() if one.interest.wants("delete")}, "old")
    updates = {number: one for number, one in asked.items() if one.exact_update() != NEVER}
    made = dict[str, tuple[When, list[str]]]()
    if inserts.told:
        made["insert"] = inserts.guard, [_append(inserts, "new")]
    if updates:
        made["update"] = any_of(*(one.exact_update() for one in updates.values())), _append_update(updates, deletes)
    if deletes.told:
        made["delete"] = deletes.guard, [_append(deletes, "old")]
    table = SQLITE.quote(next(iter(interests.values())).table)
    on_demand = any(one.on_demand for one in interests.values())
    demanded = When(qualify(_DEMANDED.format(capture), schema)) if on_demand else ALWAYS
    append, name_of = qualify(_APPEND, schema), partial(trigger_name, schema, capture)
    return {
        (name := name_of(event)): (
            f"create trigger {name} after {event} on {table} for each row "
            f"{f'when {when.sql} ' if when.is_asked else ''}begin {'; '.join(append + one for one in statements)}; end"
        )
        for event, (condition, statements) in made.items()
        for when in [all_of(demanded, condition.in_parentheses)]
    }


def trigger_name(schema: str, capture: int, event: str) -> str:
    """The name of a trigger of a capture."""
    return qualify(f"_penstock_change_{capture}_{event}", schema)


def hold(schema: str, capture: int, numbers: Sequence[int], table: str) -> dict[str, str]:
    """Triggers in the place of those of a table, by name: they name no column, and tell that a change was lost."""
    names = {event: trigger_name(schema, capture, event) for event in ("insert", "update", "delete")}
    on = f"on {SQLITE.quote(table)} for each row begin {qualify(tell_lost(numbers), schema)}; end"
    return {name: f"create trigger {name} after {event} {on}" for event, name in names.items()}


def _feed_row(kind: str, told: Mapping[int, Conditions], row: str) -> FeedRow:
    whens = {number: one.exact_match(row) for number, one in told.items()}
    return FeedRow({number: one.interest for number, one in told.items()}, whens, _SPELLING, kind)


def _append(row: FeedRow, side: str, where: When = ALWAYS) -> str:
    """Tell of a row that was inserted (``new``) or deleted (``old``): what follows `_APPEND`."""
    before, after = (row.before(side), "null") if side == "old" else ("null", row.after(side))
    return _insert(row, side, before, after, f" where {where.sql}" if where.is_asked else "")


def _append_update(asked: Mapping[int, Conditions], deletes: FeedRow) -> list[str]:
    """Tell of an update. A changed key is the end of one row and the beginning of another."""
    row = FeedRow(
        {number: one.interest for number, one in asked.items()}, {number: wants(number) for number in asked}, _SPELLING
    )
    kinds = ", ".join(f"{one.update_kind(_came(one))} as {kind_variable(number)}" for number, one in asked.items())
    told = _insert(row, "new", row.before("old"), row.after("new"), f" from (select {kinds}) where {row.guard.sql}")
    if not deletes.told:
        return [told]
    moved = next(iter(asked.values())).key_differs
    return [_append(deletes, "old", all_of(moved.in_parentheses, deletes.guard.in_parentheses)), told]


def _insert(row: FeedRow, key: str, before: str, after: str, source: str) -> str:
    values = f"'[' || {row.numbers()} || ']', {row.kinds()}, {row.key(key)}, {before}, {after}"
    return f" select {_NOW}, {values}{source}"


def _came(conditions: Conditions) -> str:
    """The kind of change for a row whose key was changed."""
    if not conditions.interest.wants("enter"):
        return "null"
    matches = conditions.exact_match("new")
    return f"case when {matches.sql} then 'enter' end" if matches.is_asked else "'enter'"


def source(interest: Interest, collations: Mapping[str, str]) -> Source:
    """The statements that read the rows of an interest; `collations` by the names of columns in lower case."""
    match = Conditions(interest, "is not", _unlike, "").exact_match("r")
    table, key = SQLITE.quote(interest.table), key_text("r", interest.key)
    columns = [f"r.{SQLITE.quote(name)}" for name in interest.place]
    known = " and ".join(f"{column} is not null" for column in columns)
    sides = (_SPELLING.json_object("r", side) for side in (interest.after, interest.before))
    values = ", ".join(_readable(text) for text in (key, *sides))
    order = f"order by {', '.join(columns)} limit ?"
    rows = f"select {values}, {_readable(_place(interest.place))} from {table} r where {all_of(match, When(known)).sql}"
    after = [_place_value(number) for number in range(len(interest.place))]
    place = f"(select {', '.join(after)} from (select ? as k))"
    each = [_item_value("g.value", number) for number in range(len(interest.key))]
    is_it = " and ".join(f"r.{SQLITE.quote(name)} = {value}" for name, value in zip(interest.key, each, strict=True))
    among = f"from json_each(?) g cross join {table} r where "  # in this order, each by its whole key
    captured = [
        f"{_item_value('g.value', _member(name))} collate {collations.get(name.lower(), 'binary')}"
        for name in interest.place
    ]
    # Unreadable text may have stood before or after the place. The row counts as not passed: it must not be lost.
    readable = " and ".join(f"not instr(g.value -> {_member(name)}, {_UNREADABLE})" for name in interest.place)
    return Source(
        first=Statement(f"{rows} {order}"),
        following=Statement(f"{rows} and {row_of(columns)} > {place} {order}"),
        among=Statement(f"select {values} {among}{all_of(When(is_it), match).sql}"),
        keys=Statement(f"select {key} {among}{is_it}"),
        passed=Statement(f"select g.key from json_each(?) g where {row_of(captured)} <= {place} and {readable}"),
    )


def _member(column: str) -> str:
    return quote_text(f"$.{json.dumps(column, ensure_ascii=False)}")


def _readable(text: str) -> str:
    """Text as Python reads it. Other programs store any bytes, and such a row must not stop the read."""
    return f"penstock_text(cast({text} as blob))"


def _is_text(column: str) -> str:
    """Whether a column holds anything but text that is not UTF-8."""
    return f"(typeof({column}) <> 'text' or penstock_is_text(cast({column} as blob)))"


def _place(columns: Sequence[str]) -> str:
    """The place of a row. Text that is not UTF-8 is written as its bytes, so that the rows after it are found."""
    named = {name: f"r.{SQLITE.quote(name)}" for name in columns}
    return _json_array(
        f"iif({_is_text(column)}, {_value('r', name)}, '{{\"text\":\"' || hex({column}) || '\"}}')"
        for name, column in named.items()
    )


def _place_value(number: int) -> str:
    """A value of a place as its column holds it."""
    unreadable = f"(k ->> '$[{number}].text')"
    return f"iif({unreadable} is null, {_item_value('k', number)}, cast(penstock_bytes({unreadable}) as text))"


def _item_value(text: str, member: int | str) -> str:
    """A captured value as its column holds it; the spelling tells its type."""
    spelled = f"({text} -> {member})"
    return f"iif(substr({spelled}, 1, 1) = '\"', penstock_given({spelled}), {text} ->> {member})"


def _unlike(columns: Collection[str]) -> str:
    return " or ".join(f"{_bare('old', column)} is not {_bare('new', column)}" for column in columns)


def _bare(row: str, column: str) -> str:
    """A column without its collation: the writing program may lack it, and it may call different values equal."""
    return f"(+{row}.{SQLITE.quote(column)} collate binary)"


def _json_array(values: Iterable[str]) -> str:
    return f"'[' || {_join([*values])} || ']'"


def _join(texts: Sequence[str], between: str = "','") -> str:
    """Texts with something between; nested, as SQLite takes no chain of a thousand operators."""
    if len(texts) > _CHAIN:
        half = len(texts) // 2
        texts = [_join(texts[:half], between), _join(texts[half:], between)]
    return f"({f' || {between} || '.join(texts)})"


def _value(row: str, column: str) -> str:
    return f"({_VALUE.format(_bare(row, column))})"


def tell_lost(numbers: Sequence[int]) -> str:
    """Tell the readers of interests that changes may have been missed; SQL of penstock's own."""
    kinds = ",".join(["lost"] * len(numbers))
    return f"{_APPEND} values ({_NOW}, '{json.dumps(numbers)}', '{kinds}', null, null, null)"


def key_text(row: str, columns: Sequence[str]) -> str:
    """The key of a row, spelled as its triggers spell it."""
    return _SPELLING.array(row, columns)


def is_known(key: Sequence[str]) -> str:
    """Whether a row, called ``r``, has a key that can be told: not NULL, and no text that is not UTF-8."""
    columns = [f"r.{SQLITE.quote(name)}" for name in key]
    return " and ".join(f"{column} is not null and {_is_text(column)}" for column in columns)
