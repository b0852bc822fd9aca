"""What a store promises of interests: what is captured, how rows are read, what becomes of triggers, and mending."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from conformance.bench import NOW, Bench, Suite, after, story
from penstock.changes.interest import Interest
from penstock.changes.position import BEGINNING
from penstock.clock import random_of
from penstock.errors import DeclarationError
from penstock.store.nouns.interests import Source
from penstock.store.session import Session, Statement
from penstock.store.store import Store

ROWS = {"a": 5, "b": 1, "c": 3, "d": 1, "e": 3}
COLUMNS = ("id", "amount")
IN_ORDER = ["b", "d", "c", "e", "a"]

EVENTS = ("insert", "update", "delete")

GREATER = '{row}."amount" > 10'


class Interests(Suite):
    @story
    async def test_whatever_is_written_is_told_as_a_model_says(self, bench: Bench) -> None:
        await make_table(bench, "thing", "a integer primary key, b integer, c integer")
        models = [
            Model(thing(name="all")),
            Model(thing(name="b", matches='{row}."b" > 1'), about=lambda row: row[0] is not None and row[0] > 1),
            Model(thing(name="entering", watches=[]), watched=lambda _: None),
            Model(thing(name="wide", watches=['{row}."c"'], after=["b"], exact=False)),
            Model(thing(name="gone", kinds=["delete"])),
            Model(thing(name="c", watches=['{row}."c" / 2']), watched=lambda row: row[1] and row[1] // 2),
            Model(
                thing(
                    name="both", matches='{row}."b" is null', watches=['{row}."c"'], kinds=["enter", "change", "leave"]
                ),
                about=lambda row: row[0] is None,
                watched=lambda row: row[1],
            ),
        ]
        numbers = await declare(bench, *(model.interest for model in models))
        chance, rows, statements = random_of(7), dict[int, Row](), list[str]()
        for _ in range(150):
            before = dict(rows)
            statements.append(write_one(chance, rows))
            for model in models:
                model.follow(before, rows)
        await bench.writing(plainly(*statements))
        for number, model in zip(numbers, models, strict=True):
            assert await told(bench, [number]) == model.told, model.interest.name
            assert len(model.told) > 20

    @story
    async def test_columns_are_captured_before_and_after(self, bench: Bench) -> None:
        await declare(bench, note("great", matches=GREATER, before=["amount"], after=["title", "amount"]))
        await run(bench, insert("a", 11), change("a", 12), change("a", 1), insert("b", 11), delete("b"))
        found = [(one.kind, one.values("before"), one.values("after")) for one in await captured(bench)]
        assert found == [
            ("enter", {}, {"title": "a", "amount": 11}),
            ("change", {"amount": 11}, {"title": "a", "amount": 12}),
            ("leave", {"amount": 12}, {"title": "a", "amount": 1}),
            ("enter", {}, {"title": "b", "amount": 11}),
            ("delete", {"amount": 11}, {}),
        ]

    @story
    async def test_odd_names_and_keys_of_many_columns(self, bench: Bench) -> None:
        await make_table(
            bench, 'Odd "Name; --', '"Key 1" text, "key\'2" integer, "é" text, primary key ("Key 1", "key\'2")'
        )
        odd = Interest(name='it\'s "odd"', table='Odd "Name; --', key=["Key 1", "key'2"], after=["é"])
        await declare(bench, odd)
        name = bench.store.dialect.quote(odd.table)
        await run(bench, f"""insert into {name} values ('x "y"', 7, 'ü\\'), ('z', -1, null)""", f"delete from {name}")
        found = [(one.kind, one.key_values(), one.values("after")) for one in await captured(bench)]
        assert found == [
            ("enter", ('x "y"', 7), {"é": "ü\\"}),
            ("enter", ("z", -1), {"é": None}),
            ("delete", ('x "y"', 7), {}),
            ("delete", ("z", -1), {}),
        ]

    @story
    async def test_what_is_undone_was_never_told(self, bench: Bench) -> None:
        await declare(bench, note("all"))

        async def write(session: Session) -> None:
            await bench.insert(session, "a")
            await session.savepoint("point")
            await bench.insert(session, "b")
            await session.rollback_to("point")
            await bench.insert(session, "c")

        await bench.writing(write)

        async def fail(session: Session) -> None:
            await bench.insert(session, "d")
            raise RuntimeError

        with pytest.raises(RuntimeError):
            await bench.writing(fail)
        assert await told(bench) == [("enter", "a"), ("enter", "c")]

    # ----- declaring

    @story
    async def test_however_many_declare_an_interest_it_is_declared_once(self, bench: Bench) -> None:
        stores = [bench.store, await bench.another(), await bench.another()]
        interests = [note("one"), note("two", matches=GREATER)]
        found = await asyncio.gather(*(store.interests.declare(interests, NOW) for store in stores))
        assert found[0] == found[1] == found[2]
        assert await stores[1].interests.declare(interests[::-1], after(9)) == found[0][::-1]
        rows = await bench.store.interests.list()
        assert [(row.id, row.interest.name, row.state, row.declared_at) for row in rows] == [
            (found[0][0], "one", "ok", NOW),
            (found[0][1], "two", "ok", NOW),
        ]
        assert rows[0].interest.digest == note("one").digest
        await run(bench, insert("a", 1), insert("b", 11))
        assert await told(bench) == [("enter", "a"), ("enter", "b"), ("enter", "b")]

    @story
    async def test_two_releases_of_one_interest_stand_side_by_side(self, bench: Bench) -> None:
        old, new = await declare(bench, note("one"), note("one", matches=GREATER))
        assert old != new
        await run(bench, insert("a", 1))
        await bench.store.interests.drop([old])
        await run(bench, insert("b", 11), insert("c", 1))
        assert await told(bench, [old]) == [("enter", "a")], "what was captured stays"
        assert await told(bench, [new]) == [("enter", "b")]
        assert [row.id for row in await bench.store.interests.list()] == [new]
        await bench.store.interests.drop([old])
        await bench.store.interests.drop([])
        (again,) = await declare(bench, note("one"))
        assert again not in {old, new}, "a number is never given twice"

    @story
    async def test_a_table_each_of_whose_changes_counts_is_known_however_it_is_spelled(self, bench: Bench) -> None:
        other = "public.conformance_note" if bench.store.dialect.schemas else "Conformance_NOTE"
        each_of, spellings = bench.store.interests.each_of, ("conformance_note", other)
        await declare(bench, note("merged"))
        assert await each_of(spellings) == frozenset()
        (number,) = await declare(bench, note("one by one", each=True))
        again = (await declare(bench, note("so too", each=True, table=other)))[0]
        for one in (number, again):
            assert await each_of((*spellings, "nothing")) == {*spellings}
            assert await bench.reading(lambda session: each_of(spellings[:1], session)) == {spellings[0]}
            await bench.store.interests.drop([one])
        assert await each_of(spellings) == frozenset()

    @story
    async def test_a_table_that_is_gone_is_noticed(self, bench: Bench) -> None:
        await make_table(bench, "thing", "a integer primary key")
        (number,) = await declare(bench, thing())
        await bench.writing(plainly("drop table thing"))
        assert await states(bench) == ["gone"]
        with pytest.raises(DeclarationError, match="there is no table"):
            await declare(bench, thing())
        await make_table(bench, "thing", "a integer primary key")
        assert await states(bench) == ["missing"]
        assert await declare(bench, thing()) == [number]
        await bench.writing(plainly("drop table thing"))
        await bench.store.interests.drop([number])
        assert await states(bench) == []

    @story
    async def test_what_is_amiss_is_mended_as_it_was_declared(self, bench: Bench) -> None:
        number, other = await declare(bench, note("all"), note("other"))
        on = " on conformance_note" if bench.store.dialect.schemas else ""
        assert not await bench.store.interests.mend(number), "it is in order"
        dropped = (f"drop trigger _penstock_change_{number}_{event}{on}" for event in EVENTS)
        await bench.writing(plainly(*map(bench.store.dialect.qualify, dropped)))
        await run(bench, insert("a", 1))
        assert await states(bench) == ["missing", "missing"], "they share them"
        assert await bench.store.interests.mend(number)
        assert await states(bench) == ["ok", "ok"]
        assert await declare(bench, note("all"), note("other")) == [number, other]
        assert not await bench.store.interests.mend(number)
        await run(bench, change("a", 2))
        assert await told(bench, [number]) == [("lost", None), ("change", "a")]
        assert await told(bench, [other]) == [("lost", None), ("change", "a")]
        await bench.store.interests.drop([number])
        assert not await bench.store.interests.mend(number), "nobody wants it any more"
        assert await states(bench) == ["ok"]

    @story
    async def test_what_does_not_fit_its_table_is_not_mended(self, bench: Bench) -> None:
        await make_table(bench, "thing", "a integer primary key, b integer")
        (number,) = await declare(bench, thing(after=["b"]))
        await bench.writing(plainly("alter table thing rename column b to c"))
        await run(bench, "insert into thing values (0, 2)")
        with pytest.raises(DeclarationError, match="no column b"):
            await bench.store.interests.mend(number)
        assert await states(bench) == ["altered"]
        await bench.writing(plainly("alter table thing rename column c to b"))
        await run(bench, "insert into thing values (1, 2)")
        assert await bench.store.interests.list() != []
        await bench.writing(plainly("drop table thing"))
        with pytest.raises(DeclarationError, match="there is no table"):
            await bench.store.interests.mend(number)

    @story
    async def test_rows_are_read_in_the_order_of_columns_and_then_of_their_keys(self, bench: Bench) -> None:
        source = await ordered(bench)
        for size in (1, 2, 5, 6):
            found = list[str]()
            place: Any = None
            while rows := await page(bench, source, place, size):
                found += [json.loads(row[0])[0] for row in rows]
                place = rows[-1][3]
            assert found == IN_ORDER, size
        (number,) = await declare(bench, note("by keys", before=COLUMNS, after=COLUMNS, order=()))
        source = await source_of(bench, number)
        rows = await page(bench, source, None, 9)
        assert [json.loads(row[0])[0] for row in rows] == sorted(ROWS)
        assert [row[3] for row in rows] == [row[0] for row in rows], "the place is the key"
        assert [row[0] for row in await page(bench, source, rows[2][0], 9)] == [row[0] for row in rows[3:]]

    @story
    async def test_captured_rows_are_compared_with_places_as_stored_rows_are(self, bench: Bench) -> None:
        source = await ordered(bench)
        places = [row[3] for row in await page(bench, source, None, 9)]
        await run(bench, *(change(title, 9) for title in IN_ORDER))
        before = [one.before for one in await captured(bench) if one.kind == "change"]
        rows = f"[{','.join(before)}]"
        for number, place in enumerate(places):
            passed = await bench.reading(lambda session, at=place: session.fetch(source.passed, [rows, at]))  # type: ignore[misc]  # mypy knows no defaults of lambdas
            assert sorted(row[0] for row in passed) == list(range(number + 1))

    @story
    async def test_what_is_read_in_a_session_is_what_that_sees(self, bench: Bench) -> None:
        source = await ordered(bench)

        async def look(session: Session) -> tuple[int, list[str]]:
            before = (await bench.store.changes.read(BEGINNING, 99, None, session)).changes
            await run(bench, insert("f", 2), change("a", 0))
            batch = await bench.store.changes.read(BEGINNING, 99, None, session)
            assert (batch.changes, batch.complete) == (before, True)
            rows = await session.fetch(source.first, [9])
            assert (await bench.store.changes.read(batch.position, 99)).changes[0].kind == "enter", (
                "what comes is not lost"
            )
            return len(before), [json.loads(row[0])[0] for row in rows]

        assert await bench.reading(look) == (len(ROWS), IN_ORDER)


# ----- steps


def note(name: str, **options: Any) -> Interest:
    return Interest(**{"name": name, "table": "conformance_note", "key": ["id"], **options})


def thing(**options: Any) -> Interest:
    return Interest(**{"name": "things", "table": "thing", "key": ["a"], **options})


async def declare(bench: Bench, *interests: Interest) -> list[int]:
    return await bench.store.interests.declare(interests, NOW)


async def make_table(bench: Bench, name: str, columns: str) -> None:
    await bench.writing(plainly(f"create table {bench.store.dialect.quote(name)} ({columns})"))


def plainly(*statements: str) -> Any:
    async def write(session: Session) -> None:
        for statement in statements:
            await session.execute(Statement(statement))

    return write


async def run(bench: Bench, *statements: str, store: Store | None = None) -> None:
    for statement in statements:
        await bench.writing(plainly(statement), store)


def sql(text: str) -> Any:
    return lambda *values: text.format(*(f"'{value}'" for value in values))


def insert(title: str, amount: int) -> str:
    return (
        f"insert into conformance_note (id, creation_time, title, amount) "
        f"values ('{title}', '2030-01-01T00:00:00.000000Z', '{title}', {amount})"
    )


def change(title: str, amount: int) -> str:
    return f"update conformance_note set amount = {amount} where id = '{title}'"


def rename(title: str, to: str) -> str:
    return f"update conformance_note set id = '{to}' where id = '{title}'"


def delete(title: str) -> str:
    return f"delete from conformance_note where id = '{title}'"


async def captured(bench: Bench, interests: Sequence[int] | None = None) -> list[Any]:
    return (await bench.store.changes.read(BEGINNING, 1000, interests)).changes


_read: WeakKeyDictionary[Bench, dict[tuple[int, ...], Any]] = WeakKeyDictionary()


async def told(bench: Bench, interests: Sequence[int] | None = None) -> list[tuple[str, Any]]:
    """Kind and key of what was captured since the last time this was asked of these interests."""
    positions = _read.setdefault(bench, {})
    asked = () if interests is None else tuple(interests)
    batch = await bench.store.changes.read(positions.get(asked, BEGINNING), 1000, interests)
    positions[asked] = batch.position
    return [(one.kind, one.key_values()[0] if one.key else None) for one in batch.changes]


async def states(bench: Bench) -> list[str]:
    return [row.state for row in await bench.store.interests.list()]


async def ordered(bench: Bench) -> Source:
    (number,) = await declare(bench, note("ordered", before=COLUMNS, after=COLUMNS, order=("amount",)))
    await run(bench, *(insert(title, amount) for title, amount in ROWS.items()))
    return await source_of(bench, number)


async def source_of(bench: Bench, number: int) -> Source:
    source = await bench.store.interests.source(number)
    assert source is not None
    return source


async def page(bench: Bench, source: Source, place: str | None, size: int) -> list[Any]:
    if place is None:
        return list(await bench.reading(lambda session: session.fetch(source.first, [size])))
    return list(await bench.reading(lambda session: session.fetch(source.following, [place, size])))


Row = tuple[int | None, int | None]


class Model:
    def __init__(
        self,
        interest: Interest,
        about: Callable[[Row], Any] = lambda _: True,
        watched: Callable[[Row], Any] = lambda row: row,
    ) -> None:
        self.interest = interest
        self._about = about
        self._watched = watched
        self.told: list[tuple[str, int]] = []

    def follow(self, before: Mapping[int, Row], rows: Mapping[int, Row]) -> None:
        for key in sorted(before.keys() - rows.keys()):
            self._tell("delete", key, self._about(before[key]))
        for key in rows.keys() & before.keys():
            was, is_now = self._about(before[key]), self._about(rows[key])
            self._tell("enter", key, is_now and not was)
            self._tell("leave", key, was and not is_now)
            differs = self._watched(before[key]) != self._watched(rows[key])
            self._tell("change", key, was and is_now and differs)
        for key in rows.keys() - before.keys():
            self._tell("enter", key, self._about(rows[key]))

    def _tell(self, kind: str, key: int, condition: Any) -> None:
        if condition and self.interest.wants(kind):
            self.told.append((kind, key))


def write_one(chance: Any, rows: dict[int, Row]) -> str:
    key, other = chance.randrange(6), chance.randrange(6)
    row = (chance.choice([None, 1, 2, 3]), chance.choice([None, 1, 2, 3]))
    b, c = ("null" if value is None else str(value) for value in row)
    if key not in rows:
        rows[key] = row
        return f"insert into thing values ({key}, {b}, {c})"
    match chance.randrange(5):
        case 0:
            del rows[key]
            return f"delete from thing where a = {key}"
        case 1 if other not in rows:
            del rows[key]
            rows[other] = row
            return f"update thing set a = {other}, b = {b}, c = {c} where a = {key}"
        case 2:
            rows[key] = row
            return f"insert into thing values ({key}, 0, 0) on conflict (a) do update set b = {b}, c = {c}"
        case _:
            rows[key] = row
            return f"update thing set b = {b}, c = {c} where a = {key}"
