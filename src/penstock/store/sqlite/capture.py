"""The triggers that capture a table for all interests in it, as SQL: one for each event.

Owns their text. One row of the feed tells all interests of a write. They use only what every SQLite has, as other
programs write on connections of their own: that goes for collations too, so columns are compared without theirs.
Captured values are JSON whatever the columns hold: bytes and infinities, which JSON has not, are text whose first
character is an escape. Who reads JSON sees no difference to text that is the same, but the spelling tells them apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from penstock.changes.conditions import Conditions
from penstock.changes.interest import Interest
from penstock.store.contract.changes import Source
from penstock.store.contract.session import Statement
from penstock.store.rows.interests import Interests, form_of, forms_of
from penstock.store.sql.dialect import row_of
from penstock.store.sqlite.dialect import SQLITE

_APPEND = "insert into penstock_change (changed_at, interests, kinds, key, before, after)"
_NOW = "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')"
_VALUE = (
    "case typeof({0}) when 'null' then 'null' when 'integer' then cast({0} as text) "
    "when 'real' then case when abs({0}) > 1.7976931348623157e308 "
    "then iif({0} > 0, '\"\\u0049nfinity\"', '\"\\u002dInfinity\"') else printf('%!.20e', {0}) end "
    "when 'blob' then '\"\\u005cx' || lower(hex({0})) || '\"' else json_quote({0}) end"
)
_CHAIN = 40
_UNREADABLE = "char(65533)"  # what Python reads for text that is no UTF-8


def triggers(capture: int, interests: Interests, columns: Collection[str]) -> dict[str, str]:
    """The statements that make the triggers of all interests in a table, by their names.

    Args:
        capture: The number in their names.
        interests: The interests.
        columns: All columns of their table.
    """
    table = next(iter(interests.values())).table
    asked = {number: conditions_of(one, columns) for number, one in interests.items()}
    entering, leaving = ({n: asked[n] for n in asked if interests[n].wants(kind)} for kind in ("enter", "delete"))
    updating = {number: conditions for number, conditions in asked.items() if conditions.update()}
    parts = {
        "insert": (entering, [one.matches("new") for one in entering.values()], [_told(entering, "enter", "new")]),
        "update": (updating, [one.update() for one in updating.values()], _updated(updating, leaving)),
        "delete": (leaving, [one.matches("old") for one in leaving.values()], [_told(leaving, "delete", "old")]),
    }
    return {
        f"_penstock_change_{capture}_{event}": (
            f"create trigger _penstock_change_{capture}_{event} after {event} on {SQLITE.quote(table)} "
            f"for each row {f'when {_any(when)} ' if all(when) else ''}begin {'; '.join(statements)}; end"
        )
        for event, (wanting, when, statements) in parts.items()
        if wanting
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


def _told(asked: Mapping[int, Conditions], kind: str, row: str, moved: str = "") -> str:
    """Tell of a row that is there now, or was there."""
    if not asked:
        return ""
    sure = len(asked) == 1 and not moved  # the trigger has asked
    tests = {number: "" if sure else one.matches(row) for number, one in asked.items()}
    form = _forms(asked)
    told = {number: f"'{kind}{form[number]}'" for number in asked}
    before, after = (_pieces(asked, side, row, tests) if row == of else "null" for side, of in ((0, "old"), (1, "new")))
    where = [f"({moved})", *[f"({_any(tests.values())})"] * all(tests.values())] if moved else []
    return (
        f"{_APPEND} select {_NOW}, '[' || {_listed(tests, str)} || ']', {_listed(tests, told.__getitem__)}, "
        f"{_array(row, _key(asked))}, {before}, {after}{' where ' if where else ''}{' and '.join(where)}"
    )


def _updated(asked: Mapping[int, Conditions], leaving: Mapping[int, Conditions]) -> list[str]:
    """A changed key is the end of one row and the beginning of another."""
    if not asked:
        return []
    kinds, form = {number: f"kind_{number}" for number in asked}, _forms(asked)
    tests = {number: f"{kind} is not null" if len(kinds) > 1 else "" for number, kind in kinds.items()}
    told = {number: f"{kind} || '{form[number]}'" for number, kind in kinds.items()}
    found = ", ".join(f"{one.kind(_came(one))} as {kinds[number]}" for number, one in asked.items())
    gone = [_told(leaving, "delete", "old", next(iter(asked.values())).moved)] if leaving else []
    told_all = (
        f"{_APPEND} select {_NOW}, '[' || {_listed(tests, str)} || ']', {_listed(tests, told.__getitem__)}, "
        f"{_array('new', _key(asked))}, {_pieces(asked, 0, 'old', tests)}, {_pieces(asked, 1, 'new', tests)} "
        f"from (select {found}) where {' or '.join(f'{kind} is not null' for kind in kinds.values())}"
    )
    return [*gone, told_all]


def _came(conditions: Conditions) -> str:
    """What a row is told as whose key was changed."""
    if not conditions.interest.wants("enter"):
        return "null"
    matches = conditions.matches("new")
    return f"case when {matches} then 'enter' end" if matches else "'enter'"


def _any(tests: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(tests))


def _listed(tests: Mapping[int, str], value: Callable[[int], str]) -> str:
    """A list of values with commas between, without those whose test fails."""
    if len(tests) == 1 and not any(tests.values()):
        return value(next(iter(tests)))
    items = (f"iif({test}, ',' || {value(n)}, '')" if test else f"',' || {value(n)}" for n, test in tests.items())
    return f"substr({' || '.join(items)}, 2)"


def _key(asked: Mapping[int, Conditions]) -> Sequence[str]:
    return next(iter(asked.values())).interest.key


def _forms(asked: Mapping[int, Conditions]) -> dict[int, str]:
    """What says, after a kind, which piece of what is captured is an interest's own."""
    forms = forms_of({number: one.interest for number, one in asked.items()})
    return {n: f" {forms.index(form_of(one.interest))}" if len(forms) > 1 else "" for n, one in asked.items()}


def _pieces(asked: Mapping[int, Conditions], side: int, row: str, tests: Mapping[int, str]) -> str:
    """What is captured on a side of a change, a piece for each form; NULL if that is nothing."""
    interests = {number: one.interest for number, one in asked.items()}
    forms, pieces = forms_of(interests), []
    for form in forms:
        piece = _object(row, form[side])
        wanted = [tests[number] for number, one in interests.items() if form_of(one) == form]
        conditional = all(wanted) and piece != "null" and len(forms) > 1
        pieces.append(f"iif({_any(wanted)}, {piece}, '')" if conditional else piece)
    if len(pieces) == 1 or {*pieces} == {"null"}:
        return pieces[0]
    return _joined(["''" if piece == "null" else piece for piece in pieces], "char(30)")


def _array(row: str, columns: Sequence[str]) -> str:
    return _json_array(_value(row, column) for column in columns)


def _json_array(values: Iterable[str]) -> str:
    return f"'[' || {_joined([*values])} || ']'"


def _object(row: str, columns: Sequence[str]) -> str:
    if not columns:
        return "null"
    pairs = [f"(json_quote({literal(column)}) || ':' || {_value(row, column)})" for column in columns]
    return f"'{{' || {_joined(pairs)} || '}}'"


def _joined(texts: Sequence[str], between: str = "','") -> str:
    """Texts with something between, in parentheses, as SQLite takes no chain of a thousand operators."""
    if len(texts) > _CHAIN:
        half = len(texts) // 2
        texts = [_joined(texts[:half], between), _joined(texts[half:], between)]
    return f"({f' || {between} || '.join(texts)})"


def _value(row: str, column: str) -> str:
    return f"({_VALUE.format(_bare(row, column))})"


def lost(numbers: Sequence[int]) -> str:
    """Tells the readers of interests that changes may have been missed."""
    kinds = ",".join(["lost"] * len(numbers))
    return f"{_APPEND} values ({_NOW}, '{json.dumps(numbers)}', '{kinds}', null, null, null)"


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
