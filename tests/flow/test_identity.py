"""Who calls: functions learn it from ctx.auth, and watched queries that ask are those of one user."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from stage.waits import SOON
from stage.watching import settle, step

from penstock import App, Identity, Index, LimitExceeded, MutationCtx, NotSignedIn, QueryCtx, Table, sync
from penstock.clock import Random, random_of
from penstock.identity.caller import ANONYMOUS
from penstock.live.view import View
from penstock.services.live.live import LiveQueries
from penstock.testing import TestApp

NOW = timedelta(0)
Said = tuple[bool, str | None]


class Note(Table):
    owner: str
    text: str

    by_text = Index("text")


class Board:
    """Notes, and functions that ask who calls."""

    def __init__(self) -> None:  # noqa: C901 - small functions
        self.app = app = App(tables=[Note])
        self.heard: list[Said] = []
        self.runs = 0

        def hear(ctx: Any, identity: Identity | None) -> None:
            transaction = getattr(ctx, "_scope", None)
            caller = ctx._call.caller if transaction is None else transaction.transaction.caller
            self.heard.append((caller.is_system, identity.subject if identity else None))

        @app.internal_query
        async def who(ctx: QueryCtx) -> str | None:
            hear(ctx, identity := await ctx.auth.get_user_identity())
            return identity.token_identifier if identity else None

        @app.mutation
        async def public(ctx: MutationCtx) -> None:
            hear(ctx, await ctx.auth.get_user_identity())

        @app.internal_mutation
        async def ask(ctx: MutationCtx) -> str | None:
            hear(ctx, await ctx.auth.get_user_identity())
            await ctx.scheduler.run_after(NOW, public)
            await ctx.scheduler.run_after(NOW, later)
            return await ctx.run_query(who)

        @app.internal_mutation
        async def later(ctx: MutationCtx) -> None:
            hear(ctx, await ctx.auth.get_user_identity())

        @app.internal_action
        def outer(ctx: sync.ActionCtx) -> list[str | None]:
            identity = ctx.auth.get_user_identity()
            return [identity.token_identifier if identity else None, ctx.run_mutation(ask), ctx.run_query(who)]

        @app.mutation
        async def write(ctx: MutationCtx, text: str) -> None:
            await ctx.db.insert(Note(owner=(await ctx.auth.require()).subject, text=text))

        @app.query
        async def mine(ctx: QueryCtx) -> list[str]:
            self.runs += 1
            identity = await ctx.auth.get_user_identity()
            owner = "" if identity is None else identity.subject
            return [note.text async for note in ctx.db.query(Note) if note.owner == owner]

        @app.query
        async def count(ctx: QueryCtx) -> int:
            return len(await ctx.db.query(Note).collect())

        @app.query
        async def late(ctx: QueryCtx) -> list[str]:
            """Ask who calls only once there are notes."""
            return await mine(ctx) if await ctx.db.query(Note).first() else []

        @app.query
        async def flagged(ctx: QueryCtx) -> list[str]:
            """Ask who calls only while there is a flag."""
            flag = await ctx.db.query(Note).with_index(Note.by_text, text="flag").first()
            return [] if flag is None else await mine(ctx)

        @app.mutation
        async def toggle(ctx: MutationCtx) -> None:
            flag = await ctx.db.query(Note).with_index(Note.by_text, text="flag").first()
            await (ctx.db.delete(Note, flag.id) if flag else ctx.db.insert(Note(owner="ada", text="flag")))

        self.flagged, self.toggle = flagged, toggle
        self.who, self.ask, self.outer, self.write = who, ask, outer, write
        self.mine, self.count, self.late = mine, count, late


def watchers(test: TestApp) -> list[tuple[str, int]]:
    return sorted((one.function.partition(":")[2], one.watchers) for one in test.live_queries.report() if one.watchers)


def taken(view: View) -> dict[int, Any]:
    """The answers that a client gets next."""
    found = view.step()
    return {} if found is None else {number: one.result for number, one in found.answers.items()}


async def soon(watch: Any) -> Any:
    return await asyncio.wait_for(anext(watch), SOON)


async def test_functions_learn_who_calls_and_pass_it_on_but_not_to_jobs(database_url: str) -> None:
    board = Board()
    async with TestApp(board.app, database_url) as test:
        ada, nobody = test.with_identity(subject="ada", name="Ada"), test.with_identity()
        assert await ada.run_action(board.outer) == ["test|ada"] * 3
        assert await nobody.run_action(board.outer) == [None] * 3
        assert await test.run_action(board.outer) == [None] * 3
        assert board.heard == [(False, "ada")] * 3 + [(False, None)] * 3 + [(True, None)] * 3
        board.heard.clear()
        await test.run_until_idle()
        assert sorted(board.heard) == [(False, None)] * 3 + [(True, None)] * 3  # the public one, and the internal one
        await ada.run_mutation(board.write, "hello")
        assert (await ada.run_query(board.mine), await nobody.run_query(board.mine)) == (["hello"], [])
        for backend in (nobody, test):
            with pytest.raises(NotSignedIn) as refused:
                await backend.run_mutation(board.write, "no")
            assert refused.value.data == {"code": "NotSignedIn", "message": "Sign in to do this."}


def test_programs_that_do_not_await_call_for_users_too(database_url: str) -> None:
    board = Board()
    with board.app.sync.open(database_url) as backend:
        ada = backend.with_identity(Identity(subject="ada", issuer="i"))
        assert (ada.run_query(board.who), backend.run_query(board.who)) == ("i|ada", None)
        with ada.live(board.mine) as watch:
            assert next(watch) == []


async def test_watched_queries_are_shared_until_one_asks_who_calls(database_url: str) -> None:
    board = Board()
    async with TestApp(board.app, database_url) as test:
        ada, bob = test.with_identity(subject="ada"), test.with_identity(subject="bob")
        nobody, again = test.with_identity(), test.with_identity(subject="ada")
        backends = (ada, bob, nobody, again)
        counts = [one.live(board.count) for one in backends]
        mine, late = [one.live(board.mine) for one in backends], [one.live(board.late) for one in backends]
        assert [await soon(one) for one in (*counts, *mine, *late)] == [0] * 4 + [[]] * 8
        assert watchers(test) == [("count", 4), ("late", 4), ("mine", 1), ("mine", 1), ("mine", 2)]
        whom = sorted((one.function.rpartition(":")[2], str(one.caller)) for one in test.live_queries.report())
        people = ("anonymous", "test|…a", "test|…b")
        assert whom == [("count", "None"), ("late", "None"), *(("mine", one) for one in people)]
        await ada.run_mutation(board.write, "secret")
        assert [await soon(one) for one in (*counts, mine[0], mine[3], late[0], late[3])] == [1] * 4 + [["secret"]] * 4
        assert watchers(test)[1:4] == [("late", 1), ("late", 1), ("late", 2)]
        mine[2]._view.become(again.caller)  # somebody signs in
        assert await soon(mine[2]) == ["secret"]
        runs = board.runs
        assert mine[2]._view.become(test.with_identity(subject="ada").caller) == []  # a new token of the same user
        assert mine[2]._view.become(ANONYMOUS) == [0]
        assert await soon(mine[2]) == []
        assert board.runs == runs  # the answer was kept


async def test_watchers_who_turn_out_to_need_their_own_answers_get_them_beyond_the_limit(database_url: str) -> None:
    board = Board()
    async with TestApp(board.app, database_url, max_watched=2) as test:
        users = [test.with_identity(subject=name) for name in ("ada", "bob", "eve")]
        watches = [user.live(board.mine) for user in users]
        assert [await soon(watch) for watch in watches] == [[]] * 3
        with pytest.raises(LimitExceeded):
            users[0].live(board.count)


class Visitors:
    """Users who come, go, sign in and out, and watch the same queries; what each has been given."""

    def __init__(self, board: Board, test: TestApp, choice: Random) -> None:
        self.board, self.test, self.choice = board, test, choice
        self.queries = [board.mine, board.late, board.flagged, board.count]
        self.users = {name: test.with_identity(subject=name) for name in ("ada", "bob")} | {"": test.with_identity()}
        self.live = LiveQueries(test.runner, board.app.definitions())
        self.views = [self.live.view() for _ in range(5)]
        self.seen: list[dict[int, Any]] = [{} for _ in self.views]
        for place in range(5):
            self.come(place, "")

    def come(self, place: int, name: str) -> None:
        self.views[place].close()
        self.views[place], self.seen[place] = self.live.view(self.users[name].caller), {}
        for number, query in enumerate(self.queries):
            self.views[place].add(number, query, {})

    async def act(self) -> None:
        name, place = self.choice.choice(list(self.users)), self.choice.randrange(len(self.views))
        did, view = self.choice.choice(["write", "write", "toggle", "become", "refresh", "come"]), self.views[place]
        if did == "write" and name:
            await self.users[name].run_mutation(self.board.write, f"{name} {self.choice.random()}")
        elif did == "toggle":
            await self.test.run_mutation(self.board.toggle)
        elif did == "become":
            for changed in view.become(self.users[name].caller):
                self.seen[place].pop(changed, None)
        elif did == "refresh" and (same := view.caller.identity) is not None:
            assert view.become(self.test.with_identity(subject=same.subject).caller) == []
        elif did == "come":
            self.come(place, name)

    def take(self) -> None:
        for view, answers in zip(self.views, self.seen, strict=True):
            answers.update(taken(view))
            owner = "nobody" if view.caller.identity is None else view.caller.identity.subject
            lists = [answers[number] for number in range(3) if number in answers]
            assert all(text.startswith(owner) or (text, owner) == ("flag", "ada") for one in lists for text in one)

    async def settle(self) -> None:
        await settle(self.live)
        await settle(self.live)
        self.take()
        for view, answers in zip(self.views, self.seen, strict=True):
            asked = self.test.with_identity(view.caller.identity)
            assert answers == {number: await asked.run_query(one) for number, one in enumerate(self.queries)}


@pytest.mark.parametrize("seed", range(2))
async def test_no_user_is_ever_given_a_row_of_another(database_url: str, seed: int) -> None:
    board, choice = Board(), random_of(seed)
    async with TestApp(board.app, database_url) as test:
        visitors = Visitors(board, test, choice)
        for _ in range(40):
            await visitors.act()
            for _ in range(choice.randrange(3)):
                await step(visitors.live)
                visitors.take()
            if choice.random() < 0.5:
                await visitors.settle()
        await visitors.live.close()
