"""Rules: callers of public functions see and write the rows that the rules of a table allow, and no others."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stage.databases import run_sql, sql
from stage.waits import SOON

from penstock import (
    AccessDenied,
    App,
    ContextError,
    DeclarationError,
    Id,
    Identity,
    Index,
    MutationCtx,
    NotSignedIn,
    QueryCtx,
    ResultInvalid,
    RowNotFound,
    Rules,
    Table,
    UsageError,
    in_,
    signed_in,
)
from penstock.reactive.tracing import trace_rule
from penstock.schema.table import definition_of
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores


class Member(Table):
    user: str
    team: str

    by_user = Index("user")


async def teams_of(ctx: QueryCtx) -> list[str]:
    """The teams of the caller: what the rules below need to know."""
    identity = await ctx.auth.require()
    return [one.team for one in await ctx.db.query(Member).with_index(Member.by_user, user=identity.subject).collect()]


def mine(row: Any, identity: Identity) -> Any:
    return row.owner == identity.subject


class Note(Table):
    owner: str
    team: str = "red"
    stars: int | None = None
    is_open: bool = False

    by_owner = Index("owner", "stars")
    by_team = Index("team", "stars")
    rules = Rules(
        read=lambda row, identity: mine(row, identity) | row.is_open, insert=mine, patch=mine, delete=lambda *_: False
    )


class Shared(Note):
    """With a rule that needs to know more than the row."""

    rules = Rules(
        read=lambda row, identity, teams: in_(row.team, teams) & (row.stars != 3),
        patch=lambda row, _identity, teams: row.team.in_(teams),
        facts=teams_of,
    )


KNOWN: list[Id[Member]] = []


async def known_team(ctx: QueryCtx) -> list[str]:
    """The team of one member, by its id."""
    await ctx.db.query(News).first()
    member = await ctx.db.get(Member, KNOWN[0])
    return [] if member is None else [member.team]


class Kept(Note):
    """With a rule that needs to know one row."""

    rules = Rules(read=lambda row, _identity, teams: in_(row.team, teams), facts=known_team)


class News(Table):
    text: str
    is_public: bool

    rules = Rules(
        read=lambda row, identity: row.is_public == True if identity is None else True,  # noqa: E712 - a stand-in
        anonymous=True,
    )


app = OPENED = App(tables=[Member, Note, Shared, Kept, News])


@app.query
async def read(ctx: QueryCtx, story: Any) -> Any:
    """Run a part of a test for its caller."""
    return await story(ctx)


@app.mutation
async def write(ctx: MutationCtx, story: Any) -> Any:
    """Run a part of a test for its caller, in a transaction."""
    return await story(ctx)


@app.internal_mutation
async def trusted(ctx: MutationCtx, story: Any) -> Any:
    """Run a part of a test for the system, whoever calls."""
    return await story(ctx)


@app.internal_query(access=signed_in)
async def read_for_caller(ctx: QueryCtx, story: Any) -> Any:
    """Run a part of a test for its caller, as an internal function that was told so."""
    return await story(ctx)


# ----- writes


async def test_a_write_that_breaks_a_rule_is_refused_and_a_hidden_row_is_a_missing_one(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        rows = [Note(owner="ada"), Note(owner="bob", is_open=True), Note(owner="bob")]
        own, shown, hidden = await test.run_mutation(trusted, lambda ctx: ctx.db.insert_many(rows))
        missing = own[:-4] + ("aaaa" if own[-4:] != "aaaa" else "bbbb")
        ada = test.with_identity(subject="ada")

        async def refused(error: type[Exception], *stories: Callable[[MutationCtx], Any]) -> None:
            for story in stories:
                with pytest.raises(error):
                    await ada.run_mutation(write, story)

        patched = await ada.run_mutation(write, lambda ctx: ctx.db.patch(Note, own, stars=1))
        assert patched.stars == 1
        assert await ada.run_mutation(write, lambda ctx: ctx.db.insert(Note(owner="ada")))
        await refused(
            AccessDenied,
            lambda ctx: ctx.db.insert(Note(owner="bob")),
            lambda ctx: ctx.db.insert_many([Note(owner="ada"), Note(owner="bob")]),
            lambda ctx: ctx.db.patch(Note, own, owner="bob"),
            lambda ctx: ctx.db.patch(Note, shown, owner="ada"),
            lambda ctx: ctx.db.delete(Note, own),
            lambda ctx: ctx.db.insert(Shared(owner="ada")),
        )
        for gone in (hidden, missing):
            verbs: list[Any] = [
                lambda ctx, gone=gone: ctx.db.patch(Note, gone, owner="ada"),
                lambda ctx, gone=gone: ctx.db.replace(Note, gone, Note(owner="ada")),
                lambda ctx, gone=gone: ctx.db.delete(Note, gone),
            ]
            await refused(RowNotFound, *verbs)
        assert await test.run_query(read, lambda ctx: ctx.db.query(Note).count()) == 4


async def test_what_another_program_makes_of_a_row_is_held_to_the_rule_too(empty_database_url: str) -> None:
    kind = "text collate nocase" if empty_database_url.startswith("sqlite") else "text"
    await run_sql(empty_database_url, f"create table letter (number bigint primary key, owner {kind} default 'eve')")

    class Letter(Table, source="letter", key="number", managed=False):
        number: int
        owner: str | None = None

        by_owner = Index("owner")
        rules = Rules(read=mine, insert=mine, patch=mine)

    own = App(tables=[Letter])

    @own.mutation
    async def put(ctx: MutationCtx, number: int, owner: str | None) -> None:
        try:
            await ctx.db.insert(Letter(number=number, owner=owner))
        except AccessDenied:
            await ctx.db.insert(Letter(number=number + 1, owner="ada"))

    @own.query
    async def letters(ctx: QueryCtx, owner: str = "") -> list[int]:
        found = ctx.db.query(Letter)
        found = found.with_index(Letter.by_owner, owner=owner) if owner else found
        return [row.number for row in await found.collect()]

    async with TestApp(own, empty_database_url) as test:
        await test.with_identity(subject="ada").run_mutation(put, 1, None)
        await test.with_identity(subject="eve").run_mutation(put, 3, None)
        assert await test.run_query(letters) == [2, 3]
        assert await test.with_identity(subject="ada").run_query(letters, "ada") == [2]
        assert await test.with_identity(subject="ADA").run_query(letters, "ADA") == [], "whatever the column says"


# ----- who is let in


async def test_without_an_identity_a_table_with_rules_is_closed_unless_they_say_otherwise(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        nobody, ada = test.with_identity(), test.with_identity(subject="ada")
        verbs: list[Callable[[Any], Any]] = [
            lambda ctx: ctx.db.query(Note).collect(),
            lambda ctx: ctx.db.insert(Note(owner="")),
        ]
        for verb in verbs:
            with pytest.raises(NotSignedIn):
                await nobody.run_mutation(write, verb)
        news = [News(text="x", is_public=public) for public in (True, False)]
        await test.run_mutation(trusted, lambda ctx: ctx.db.insert_many(news))
        counted = [await one.run_query(read, lambda ctx: ctx.db.query(News).count()) for one in (nobody, ada, test)]
        assert counted == [1, 2, 2]
        assert await ada.run_query(read, lambda ctx: ctx.db.query(Member).collect()) == [], "it has no rules"


async def test_internal_functions_read_all_rows_and_public_ones_and_their_helpers_the_callers(
    database_url: str,
) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(trusted, lambda ctx: ctx.db.insert_many([Note(owner="ada"), Note(owner="bob")]))
        ada = test.with_identity(subject="ada")

        async def count(ctx: Any) -> int:
            return len(await ctx.db.query(Note).collect())

        async def by_sql(ctx: Any) -> Any:
            return await ctx.sql("select count(*) as n from note", reads=[Member])

        assert await test.run_query(read, count) == 2
        for story, number in (
            (count, 1),
            (lambda ctx: read(ctx, count), 1),
            (lambda ctx: trusted(ctx, count), 1),
            (lambda ctx: ctx.run_query(read, count), 1),
            (lambda ctx: ctx.run_mutation(trusted, count), 2),
            (lambda ctx: ctx.run_query(read_for_caller, count), 1),
        ):
            assert await ada.run_mutation(write, story) == number
        assert await test.run_query(read_for_caller, count) == 2, "its caller is the system"
        for call in (
            ada.run_mutation(write, lambda ctx: ctx.run_query(read_for_caller, by_sql)),
            ada.run_query(read, by_sql),
        ):
            with pytest.raises(ContextError, match="the rules of tables do not hold in SQL"):
                await call
        for one, options in ((ada, {"unruled": True}), (test, {})):
            found = await one.run_query(read, lambda ctx, o=options: ctx.sql("select count(*) as n from note", **o))
            assert found == [{"n": 2}]


async def test_a_page_ends_at_no_row_that_is_hidden_and_a_cursor_of_another_user_shows_none(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        rows = [Note(owner="bob" if number % 2 else "ada", stars=2 * number) for number in range(6)]
        await test.run_mutation(trusted, lambda ctx: ctx.db.insert_many(rows))

        def page(ctx: QueryCtx, cursor: str | None = None) -> Any:
            return ctx.db.query(Note).with_index(Note.by_team, team="red").paginate(cursor=cursor, num_items=2)

        first = await test.with_identity(subject="bob").run_query(read, page)
        assert [row.stars for row in first.page] == [2, 6]
        ada = test.with_identity(subject="ada")
        second = await ada.run_query(read, lambda ctx: page(ctx, first.continue_cursor))
        assert [row.stars for row in second.page] == [8]


# ----- facts


async def test_a_rule_sees_what_its_own_transaction_has_written_and_undone(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(trusted, lambda ctx: ctx.db.insert(Shared(owner="ada", team="red")))
        ada = test.with_identity(subject="ada")

        async def join(ctx: MutationCtx) -> None:
            await ctx.db.insert(Member(user="ada", team="red"))

        async def fail(ctx: MutationCtx) -> None:
            await join(ctx)
            assert await ctx.run_query(read, count) == 1
            raise ValueError

        async def count(ctx: QueryCtx) -> int:
            return await ctx.db.query(Shared).count()

        async def steps(ctx: MutationCtx) -> list[int]:
            found = [await count(ctx)]
            with pytest.raises(ValueError, match=r"^$"):
                await ctx.run_mutation(write, fail)
            found.append(await count(ctx))
            await join(ctx)
            found.append(await count(ctx))
            (member,) = await ctx.db.query(Member).collect()
            await ctx.db.patch(Member, member.id, team="blue")
            return [*found, await count(ctx)]

        assert await ada.run_mutation(write, steps) == [0, 0, 1, 0]


async def test_a_fact_that_was_read_before_by_the_function_itself_does_not_last_longer(database_url: str) -> None:
    async with TestApp(app, database_url) as test:

        async def fill(ctx: MutationCtx) -> None:
            KNOWN[:] = [await ctx.db.insert(Member(user="ada", team="red"))]
            await ctx.db.insert(Kept(owner="ada", team="red"))

        async def story(ctx: MutationCtx) -> list[int]:
            await ctx.db.get(Member, KNOWN[0])
            before = await ctx.db.query(Kept).count()
            await ctx.db.patch(Member, KNOWN[0], team="blue")
            return [before, await ctx.db.query(Kept).count()]

        await test.run_mutation(trusted, fill)
        assert await test.with_identity(subject="ada").run_mutation(write, story) == [1, 0]


async def test_a_live_query_changes_with_a_permission(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(trusted, lambda ctx: ctx.db.insert(Shared(owner="ada", team="red")))
        own = App(tables=[Member, Shared])

        @own.query
        async def seen(ctx: QueryCtx) -> int:
            return await ctx.db.query(Shared).count()

        async with TestApp(own, database_url) as other:
            ada, bob = other.with_identity(subject="ada"), other.with_identity(subject="bob")
            async with ada.live(seen) as watch, bob.live(seen) as still:
                assert await anext(watch) == await anext(still) == 0
                await sql(other, "insert into member values ('member_1', '2030-01-01T00:00:00.000000Z', 'ada', 'red')")
                assert await asyncio.wait_for(anext(watch), SOON) == 1
                assert len(other.live_queries.report()) == 2


# ----- how a rule is written


def test_a_rule_that_looks_at_a_field_in_a_way_that_cannot_be_seen_runs_in_python() -> None:
    """SQL would take the stand-in of a field for a value: it is never None, and no text."""
    odd: list[Callable[[Any, Identity], Any]] = [
        lambda row, _identity: row.team is None,
        lambda row, identity: row.owner == identity.subject if row.stars is None else row.is_open,
        lambda row, _identity: isinstance(row.stars, int),
    ]
    even: list[Callable[[Any, Identity], Any]] = [
        lambda row, _identity: row.stars.is_none(),
        lambda row, identity: identity.claims.get("role") == "admin" or row.is_open,
    ]
    who = Identity(subject="ada", issuer="test")
    for rule in odd:
        with pytest.raises(DeclarationError, match=r"without comparing|needs the value|instead of a cond"):
            trace_rule(definition_of(Note), rule, (who,), "A rule")
    for rule in even:
        trace_rule(definition_of(Note), rule, (who,), "A rule")
    lacking: list[Callable[[Any, Identity], Any]] = [
        lambda row, identity: row.stars == identity.claims.get("stars"),
        lambda row, identity: row.team.in_(["red", identity.email]),
    ]
    for rule in lacking:
        with pytest.raises(AccessDenied, match=r"None\. The caller may lack a claim"):
            trace_rule(definition_of(Note), rule, (who,), "A rule")
    with pytest.raises(UsageError, match=r"the table has no column 'ownr'\. There is owner") as caught:
        trace_rule(definition_of(Note), lambda row, identity: row.ownr == identity.subject, (who,), "A rule")
    assert not isinstance(caught.value, DeclarationError)  # after which the rule would run in Python
    with pytest.raises(DeclarationError, match="would read for each row"):
        Rules(read=teams_of)
    with pytest.raises(DeclarationError, match=r"no function of \(row, identity, facts\)"):
        Rules(read=mine, facts=teams_of)


async def nobody(*_given: Any) -> bool:
    return False


class Secret(Table):
    text: str

    rules = Rules(read=lambda row, identity: nobody(row, identity))  # noqa: PLW0108 - it is no async function


@pytest.mark.filterwarnings("ignore:coroutine")
async def test_a_rule_or_a_guard_that_returns_no_bool_lets_nobody_in(tmp_path: Path) -> None:
    """As one does that calls an async function and does not await it."""
    own = App(tables=[Secret])

    @own.query
    async def secrets(ctx: QueryCtx) -> list[Secret]:
        return await ctx.db.query(Secret).collect()

    @own.query(access=lambda ctx: nobody(ctx))  # noqa: PLW0108 - it is no async function
    async def guarded(ctx: QueryCtx) -> int:
        raise AssertionError

    @own.internal_mutation
    async def put(ctx: MutationCtx) -> None:
        await ctx.db.insert(Secret(text="x"))

    async with TestApp(own, f"sqlite:///{tmp_path}/own.db") as test:
        await test.run_mutation(put)
        functions: tuple[Any, ...] = secrets, guarded
        for function in functions:
            with pytest.raises(ResultInvalid, match=r"returned coroutine\. Return a bool"):
                await test.with_identity(subject="ada").run_query(function)
            gc.collect()
