"""`ctx.sql`: queries that the builder cannot say. It reads, and that is all it can be made to do."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from stage.stories import tell_in

from penstock import (
    App,
    DataError,
    Index,
    InputError,
    LimitExceeded,
    MutationCtx,
    PenstockError,
    QueryCtx,
    Table,
    ValueInvalid,
)
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Note(Table):
    text: str
    number: int = 0
    moment: datetime = NOON
    day: date = date(2030, 1, 1)
    span: timedelta = timedelta(0)
    price: Decimal = Decimal(0)
    uuid: UUID = UUID(int=0)
    real: float = 0.0
    truth: bool = False
    data: bytes = b""
    colour: Colour = Colour.RED

    by_text = Index("text", unique=True)


app = OPENED = App(tables=[Note])
write, read, _ = tell_in(app)


async def fill(ctx: MutationCtx) -> None:
    await ctx.db.insert_many([Note(text=text, number=number) for number, text in enumerate("abc", 1)])


async def test_rows_come_as_dicts_by_the_names_of_their_columns(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, fill)

        async def look(ctx: QueryCtx) -> None:
            rows = await ctx.sql("select text, number from note order by number desc limit 2")
            assert rows == [{"text": "c", "number": 3}, {"text": "b", "number": 2}]
            sums = await ctx.sql("select sum(number) as total, count(*) as n from note where text <> :t", t="a")
            assert sums == [{"total": 5, "n": 2}]
            low = await ctx.sql("with low as (select * from note where number < :n) select text from low", n=2)
            assert low == [{"text": "a"}]
            assert await ctx.sql("  -- a remark; select\n/* another (; */ SELECT 1 AS one") == [{"one": 1}]
            assert [list(row.values()) for row in await ctx.sql("values (1), (2)")] == [[1], [2]]
            assert await ctx.sql("select 1 as one where false") == []
            assert await ctx.sql("explain select * from note") != []

        await backend.run_query(read, look)
        await backend.run_mutation(write, look)


async def test_names_stand_for_values_wherever_they_occur_but_in_texts(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, fill)

        async def look(ctx: QueryCtx) -> None:
            rows = await ctx.sql(
                "select text, ':n' as quoted, 'it''s :n' as more, ' :n' as spaced from note "
                "where number = :n -- :n\n and number < :n + 1 /* :n */ and text = :t and number = :n",
                n=2,
                t="b",
            )
            assert rows == [{"text": "b", "quoted": ":n", "more": "it's :n", "spaced": " :n"}]
            halves = "select number / :n as half, count(*) as many from note group by number / :n order by number / :n"
            assert await ctx.sql(halves, n=2) == [{"half": 0, "many": 1}, {"half": 1, "many": 2}]
            assert await ctx.sql('select number as ":n" from note where number = :n', n=1) == [{":n": 1}]
            hostile = "'; drop table note; --"
            assert await ctx.sql("select text from note where text = :hostile", hostile=hostile) == []

        await backend.run_query(read, look)


async def test_casts_and_slices_are_not_taken_for_names(postgres_url: str) -> None:
    async with TestApp(app, postgres_url) as backend:
        await backend.run_mutation(write, fill)

        async def look(ctx: QueryCtx) -> None:
            cast = "select number::int as n, (array[4, 5, 6])[1:2] as some from note where text = :int"
            assert await ctx.sql(cast, int="b") == [{"n": 2, "some": [4, 5]}]
            some = await ctx.sql("select text from note where number = any(:numbers) order by 1", numbers=[1, 3])
            assert [row["text"] for row in some] == ["a", "c"]
            [row] = await ctx.sql("select uuid as one, array[uuid] as several from note where number = 1")
            assert {type(row["one"]), type(row["several"][0])} == {UUID}

        await backend.run_query(read, look)


async def test_values_compare_as_those_of_the_columns_do(database_url: str) -> None:
    values: dict[str, list[Any]] = {
        "moment": [NOON - timedelta(microseconds=1), NOON],
        "day": [date(999, 1, 1), date(2030, 1, 1)],
        "span": [timedelta(days=-1), timedelta(microseconds=1), timedelta(days=1)],
        "price": [Decimal("-1.5"), Decimal("9.9"), Decimal(10)],
        "uuid": [UUID(int=1), UUID(int=2**127)],
        "real": [-1.5, 0.0, 1e300],
        "truth": [False, True],
        "data": [b"", b"\0", b"\xff"],
        "number": [-(2**63), 0, 2**63 - 1],
        "text": ["", "a", "\N{GRINNING FACE}"],
    }
    async with TestApp(app, database_url) as backend:
        for column, ordered in values.items():

            async def refill(ctx: MutationCtx, column: str = column, ordered: list[Any] = ordered) -> None:
                for row in await ctx.db.query(Note).collect():
                    await ctx.db.delete(Note, row.id)
                await ctx.db.insert_many([Note(**{"text": str(n), column: value}) for n, value in enumerate(ordered)])

            async def look(ctx: QueryCtx, column: str = column, ordered: list[Any] = ordered) -> None:
                for place, value in enumerate(ordered):
                    for how, count in (
                        (f"{column} <= :value and :value <= {column}", 1),
                        (f"{column} < :value", place),
                    ):
                        assert await ctx.sql(f"select count(*) as n from note where {how}", value=value) == [
                            {"n": count}
                        ]

            await backend.run_mutation(write, refill)
            await backend.run_query(read, look)

        async def more(ctx: QueryCtx) -> None:
            row: Any = await ctx.db.query(Note).first()
            elsewhere = NOON.astimezone(UTC).replace(tzinfo=None)
            assert await ctx.sql("select text from note where colour = :c and id = :id", c=Colour.RED, id=row.id) != []
            assert await ctx.sql("select text from note where text = :nothing", nothing=None) == []
            with pytest.raises(ValueInvalid):
                await ctx.sql("select text from note where moment > :m", m=elsewhere)
            for value in ("a\0", "\ud800", float("nan"), 2**63, object()):
                with pytest.raises(PenstockError) as refused:
                    await ctx.sql("select text from note where text = :value", value=value)
                assert type(value) is object or isinstance(refused.value, InputError)

        await backend.run_query(read, more)


WRITES = [
    "insert into note (id) values ('x')",
    "update note set number = 99 returning id",
    "delete from note",
    "drop table note",
    "truncate note",
    "commit",
    "savepoint x",
    "rollback to member",
    "set transaction read write",
    "discard all",
    "prepare x as delete from note",
    "do $$ begin delete from note; end $$",
    "listen x",
    "pragma query_only = off",
    "attach ':memory:' as other",
    "merge into note using note as other on true when matched then delete",
    "",
    "/* select 1",
    "(delete from note)",
    "select 1; delete from note",
    "with gone as (delete from note returning id) select * from gone",
    "select * into other from note",
    "select set_config('transaction_read_only', 'off', true)",
    "select * from note for update",
    "explain analyze delete from note",
    "select * from nowhere",
    "select :unknown",
    "select ':known",
    "select 1 as one, 2 as one",
    "select",
]


@pytest.mark.parametrize("kind", ["query", "mutation"])
async def test_whatever_is_tried_nothing_is_written_and_the_transaction_goes_on(database_url: str, kind: str) -> None:
    runs = {"select"} if database_url.startswith("postgres") else set()  # PostgreSQL has queries without columns
    async with TestApp(app, database_url) as backend:
        await backend.run_mutation(write, fill)

        async def attack(ctx: Any) -> None:
            for statement in (one for one in WRITES if one not in runs):
                with pytest.raises(PenstockError) as caught:
                    await ctx.sql(statement)
                assert isinstance(caught.value, DataError | InputError), (statement, caught.value)
                assert await ctx.sql("select count(*) as n from note") == [{"n": 3 + (kind == "mutation")}], statement

        async def in_a_mutation(ctx: MutationCtx) -> None:
            await ctx.db.insert(Note(text="before"))
            await attack(ctx)
            await ctx.run_mutation(write, lambda inner: inner.db.insert(Note(text="part")))
            await ctx.db.insert(Note(text="after"))

        await (backend.run_query(read, attack) if kind == "query" else backend.run_mutation(write, in_a_mutation))
        rows = await backend.run_query(read, lambda ctx: ctx.db.query(Note).with_index(Note.by_text).collect())
        expected = ["a", "b", "c"] if kind == "query" else ["a", "after", "b", "before", "c", "part"]
        assert [row.text for row in rows] == expected
        assert {row.number for row in rows} <= {0, 1, 2, 3}
        await backend.run_mutation(write, lambda ctx: ctx.db.insert(Note(text="later")))


async def test_sql_sees_what_the_transaction_wrote_and_reads_all_tables(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:

        async def story(ctx: MutationCtx) -> None:
            note = await ctx.db.insert(Note(text="new", number=5))
            assert await ctx.sql("select text from note where id = :id", id=note) == [{"text": "new"}]
            await ctx.db.patch(Note, note, number=6)

            async def look(inner: QueryCtx) -> Any:
                return await inner.sql("select number from note")

            assert await ctx.run_query(read, look) == [{"number": 6}]
            await ctx.db.delete(Note, note)
            assert await ctx.sql("select 1 as one from note") == []

        async def fail(ctx: QueryCtx) -> None:
            reads = ctx._scope.transaction.read_set
            assert not reads.everything
            with pytest.raises(DataError, match="other does not occur in the query"):
                await ctx.sql("select text from note where text = :text", text="a", other=1)
            with pytest.raises(DataError):
                await ctx.sql("select text from note where text = :text and number = :missing", text="a")
            with pytest.raises(DataError):
                await ctx.sql("select * from nowhere")
            assert reads.everything, "that it failed may depend on the data"

        await backend.run_mutation(write, story)
        await backend.run_query(read, fail)


async def test_an_endless_query_is_stopped_at_its_time(database_url: str) -> None:
    lite = database_url.startswith("sqlite")
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    endless = endless if lite else "select pg_sleep(30)"
    async with TestApp(app, database_url, statement_timeout=0.2) as backend:
        with pytest.raises(PenstockError, match="took too long" if lite else "was stopped"):
            await backend.run_query(read, lambda ctx: ctx.sql(endless))

        async def story(ctx: MutationCtx) -> None:
            await ctx.db.insert(Note(text="kept"))
            with pytest.raises(PenstockError):
                await ctx.sql(endless)

        await backend.run_mutation(write, story)
        assert await backend.run_query(read, lambda ctx: ctx.sql("select text from note")) == [{"text": "kept"}]


async def test_an_endless_result_is_cut_off_at_the_limit(database_url: str) -> None:
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select i from n"
    async with TestApp(app, database_url, max_rows_read=1000) as backend:
        with pytest.raises(LimitExceeded, match="read more than 1000 rows"):
            await backend.run_query(read, lambda ctx: ctx.sql(endless))
