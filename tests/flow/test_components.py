"""Components: an app used in another one, also twice, with rows, names and work of its own in each use."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import comments
import kitchen
import pytest
from flow import billing_component as billing
from flow import shapes_component as shapes

from penstock import (
    AccessDenied,
    ActionCtx,
    App,
    ApplicationError,
    ContextError,
    DeclarationError,
    FunctionNotFound,
    Id,
    MutationCtx,
    MutationTaskCtx,
    QueryCtx,
    Table,
)
from penstock.calls.jobs.group import Groups
from penstock.codegen.description import describe
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores


class Order(Table):
    text: str


app = App(tables=[Order])
shop = app.use(billing.app, name="shop", expose=[billing.charge, billing.mine], http_prefix="/shop")
club = app.use(billing.app, name="club")


@app.internal_mutation
async def order(ctx: MutationCtx, customer: str, *, fails: bool = False, caught: bool = False) -> None:
    """Order, and charge in the shop; an error of the shop may be caught."""
    await ctx.db.insert(Order(text=customer))
    if fails:
        try:
            await ctx.run_mutation(shop[billing.charge_and_fail], customer)
        except ApplicationError:
            if not caught:
                raise
    else:
        await ctx.run_mutation(shop[billing.charge], customer, 100)
    await ctx.run_mutation(club[billing.note], f"member {customer}")


@app.internal_query
async def orders(ctx: QueryCtx) -> list[str]:
    return [one.text async for one in ctx.db.query(Order)]


@app.internal_mutation
async def reply(ctx: MutationCtx, text: str) -> str:
    await ctx.db.insert(Order(text=text))
    return text.upper()


@app.internal_query
async def peep(ctx: QueryCtx) -> int:
    return len(await ctx.db.query(billing.Line).collect())


@app.internal_mutation
async def borrow(ctx: MutationCtx) -> None:
    await shop[billing.note](ctx, "with the ctx of the program")


async def lines_of(test: Any, use: Any) -> list[str]:
    found: list[str] = await test.run_query(use[billing.lines])
    return found


# ----- two uses, one code


async def test_two_uses_have_rows_of_their_own_and_rows_of_one_class(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        row = await test.run_mutation(shop[billing.charge], "Ada", 100, text="a bicycle")
        assert (await test.run_mutation(shop[billing.set_paid], row)).paid
        await test.run_mutation(club[billing.charge], "Ada", 5, text="the fee")  # its index is unique in each use
        assert type((await test.run_query(shop[billing.find], "bicycle"))[0]) is billing.Charge
        assert await test.run_query(club[billing.find], "bicycle") == []
        await test.run_until_idle()
        assert await lines_of(test, shop) == ["booked Ada", "thanks Ada"]
        assert await lines_of(test, club) == ["booked Ada"]
        names = {one.name for one in app.definitions()}
        assert names == {"order", "shop__charge", "shop__line", "club__charge", "club__line"}


async def test_all_work_of_a_use_stays_in_it(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.scheduler.run_after(timedelta(0), reply, "bob")
        await test.run_mutation(shop[billing.enqueue])
        assert await test.run_query(shop[billing.count_work]) == [3, 2, 2, 1, 2, 0, 3]
        assert await test.run_query(club[billing.count_work]) == [0] * 7
        await test.run_until_idle()
        await test.run_until(datetime(2030, 1, 1, 9, 1, tzinfo=UTC))
        await test.run_until_idle()
        shown = ["daily", "dunned", "dunned in the pool", "ended", "paid Ada", "pooled", "scheduled"]
        assert await lines_of(test, shop) == shown
        assert await lines_of(test, club) == ["daily"]
        pools = {one.name: one for one in await test.pools()}
        assert {"shop/bank", "club/bank"} <= pools.keys()
        jobs = {one.function for one in await test.jobs()}
        assert {
            "shop/flow.billing_component:note",
            "shop/flow.billing_component:dunning",
            "club/flow.billing_component:daily",
        } <= jobs


async def test_an_action_of_a_use_schedules_in_it_and_sees_how_its_jobs_end(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        jobs = await test.run_action(shop[billing.schedule])
        assert await test.run_query(shop[billing.states], jobs) == ["pending", "pending", "pending"]
        await test.run_until_idle()
        test.clock.advance(timedelta(hours=2))
        await test.run_until_idle()
        assert await test.run_query(shop[billing.states], jobs) == ["success", "success", "canceled"]
        assert (await lines_of(test, shop), await lines_of(test, club)) == (["4 by 2", "by an action"], [])


async def test_limits_and_locks_of_two_uses_are_apart(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        assert await test.run_mutation(shop[billing.attempt]) == [True, False]
        assert await test.run_mutation(club[billing.attempt]) == [True, False]
        inner, same = (f"function://{name}/flow.billing_component:hold" for name in ("club", "shop"))
        await test.run_action(shop[billing.hold], inner)
        with pytest.raises(ContextError, match="shop/bank"):  # it is held here already
            await test.run_action(shop[billing.hold], same)


@app.internal_mutation
async def pay(ctx: MutationCtx, row: Id[billing.Charge]) -> None:
    """Take an id of a component's row, which the program itself does not look for."""
    await ctx.run_mutation(shop[billing.set_paid], row)


async def test_jobs_that_share_a_transaction_read_the_rows_of_their_use(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = list[Exception]()
    part = Groups._part

    def note(self: Groups, group: Any, error: Exception) -> Any:
        failed.append(error)
        return part(self, group, error)

    monkeypatch.setattr(Groups, "_part", note)
    async with TestApp(app, database_url) as test:
        for use in (shop, club):
            rows = [await test.run_mutation(use[billing.charge], name, 1) for name in ("Ada", "Bob", "Cyd")]
            for row in rows:
                await test.scheduler.run_after(timedelta(0), use[billing.set_paid], row)
                await test.scheduler.run_after(timedelta(0), use[billing.note_all], row)
            if use is shop:
                for row in rows:
                    await test.scheduler.run_after(timedelta(0), pay, row)
            await test.run_until_idle()
            assert [one for one in await lines_of(test, use) if one.startswith("thanks")] == [
                "thanks Ada",
                "thanks Bob",
                "thanks Cyd",
            ]
            assert len([one for one in await lines_of(test, use) if one.endswith("of 3")]) == 3
    assert failed == [], "they have shared one"


async def test_an_action_of_a_component_runs_in_a_process(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        assert await test.run_action(shop[billing.compute], 7) == 49


async def test_vectors_of_two_uses_are_apart(database_url: str) -> None:
    program = App()
    here, there = (program.use(shapes.app, name=name) for name in ("here", "there"))
    async with TestApp(program, database_url) as test:
        await test.run_mutation(here[shapes.draw], "a line", [1.0, 0.0])
        await test.run_mutation(there[shapes.draw], "a circle", [0.0, 1.0])
        await test.run_until_idle()
        assert await test.run_action(here[shapes.nearest], [1.0, 0.0]) == [1.0]
        assert await test.run_action(there[shapes.nearest], [1.0, 0.0]) == [0.0]


# ----- one transaction


async def test_a_mutation_of_the_program_and_of_components_is_one_transaction(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(order, "Ada")
        with pytest.raises(ApplicationError, match="the bank is closed"):
            await test.run_mutation(order, "Bob", fails=True)
        assert (await test.run_query(orders), await test.run_query(shop[billing.customers])) == (["Ada"], ["Ada"])
        assert await lines_of(test, club) == ["member Ada"]


async def test_a_caught_failure_undoes_the_component_alone(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(order, "Bob", fails=True, caught=True)
        assert (await test.run_query(orders), await test.run_query(shop[billing.customers])) == (["Bob"], [])
        await test.run_until_idle()
        assert await lines_of(test, shop) == []
        assert await lines_of(test, club) == ["member Bob"]


async def test_a_live_query_of_a_component_runs_again_for_its_rows_only(database_url: str) -> None:
    async with TestApp(app, database_url) as test, test.live(shop[billing.customers]) as answers:
        assert await anext(answers) == []
        await test.run_mutation(club[billing.charge], "Ada", 1)
        await test.run_mutation(order, "Bob")
        assert await anext(answers) == ["Bob"]


# ----- what a ctx reaches


async def test_a_ctx_reaches_the_tables_of_its_part_only(database_url: str) -> None:
    own = App(tables=[Order, billing.Line])
    async with TestApp(app, database_url) as test:
        with pytest.raises(ContextError, match=r"Line is a table of component (shop|club)"):
            await test.run_query(peep)
        with pytest.raises(ContextError, match=r"run_mutation\(shop\[…\]"):
            await test.run_mutation(borrow)
        with pytest.raises(ContextError, match="Order is not a table of component shop"):
            await test.run_query(shop[billing.reach], Order)
        odds: tuple[Any, ...] = ({}, None, "shop__line")
        for odd in odds:
            with pytest.raises(ContextError, match="is not a table of component shop"):
                await test.run_query(shop[billing.reach], odd)
        with pytest.raises(ContextError, match="SQL does not know"):
            await test.run_query(shop[billing.by_sql])
        with pytest.raises(ContextError, match=r"comments = app\.use"):
            await billing.pool.enqueue(test, billing.note, "by the app's own function")
    own.use(billing.app, name="shop")
    assert {"line", "shop__line"} <= {one.name for one in own.definitions()}, (
        "a table that the program names is its own"
    )


async def test_rules_and_facts_of_a_component_hold_for_the_caller(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        ada = test.with_identity(issuer="test", subject="ada")
        for use, text in ((shop, "a bicycle"), (club, "the fee")):
            await ada.run_mutation(use[billing.charge], "Ada", 1, text=text, owner="ada")
            await test.run_mutation(use[billing.charge], "Bob", 1, owner="bob")
        await test.run_mutation(club[billing.note], "the fee")  # its facts are not those of the shop
        assert [one.customer for one in await ada.run_query(shop[billing.mine])] == ["Ada"]
        assert await ada.run_query(club[billing.mine]) == []


async def test_guards_and_helpers_look_at_the_tables_of_their_use(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        ada, eve = (test.with_identity(issuer="test", subject=name) for name in ("ada", "eve"))
        row = await test.run_mutation(shop[billing.charge], "Ada", 1, owner="ada")
        assert await ada.run_mutation(shop[billing.rename], row, "Adalbert") == "Ada"
        for caller, use in ((eve, shop), (ada, club)):
            with pytest.raises(AccessDenied):
                await caller.run_mutation(use[billing.rename], row, "Eve")


async def test_clients_reach_what_is_exposed(database_url: str) -> None:
    async with TestApp(app, database_url) as test, test.http as client:

        async def call(kind: str, path: str, **args: Any) -> dict[str, Any]:
            sent = {"path": path, "args": args, "format": "json"}
            found: dict[str, Any] = (await client.post(f"/api/{kind}", json=sent)).json()
            return found

        assert (await call("mutation", "shop/billing:charge", customer="Ada", cents=1))["status"] == "error"  # rules
        assert "sign in" in str(await call("query", "shop/flow.billing_component:mine")).lower()
        for hidden in ("club/billing:charge", "shop/flow.billing_component:lines", "billing:charge", "shop/billing:x"):
            assert "Could not find public function" in str(await call("query", hidden)), hidden
        assert (await client.get("/shop/total/7")).text == "0 of 7"
        assert (await client.get("/total/7")).status_code == 404
        found = describe(one for one in app.registry if one.public).functions
        public_ones = [f"{one.module}:{one.name}" for one in found]
        assert sorted(public_ones) == ["shop/billing:charge", "shop/flow.billing_component:mine"]


# ----- handles


@pytest.mark.parametrize("of", [billing.handles, billing.handles_of_action])
async def test_handles_are_the_same_from_queries_and_actions(database_url: str, of: Any) -> None:
    async with TestApp(app, database_url) as test:
        run = test.run_query if of is billing.handles else test.run_action
        names = ("sum_of", "multiply", "divide")
        assert await run(shop[of]) == [f"function://shop/flow.billing_component:{name}" for name in names]


@app.internal_query
async def query_calls_handles(ctx: QueryCtx) -> int:
    first = (await ctx.run_query(shop[billing.handles]))[0]
    found: int = await ctx.run_query(ctx.function(first), 1, b=2)
    return found


@app.internal_mutation
async def mutation_calls_handles(ctx: MutationCtx) -> list[int]:
    first, second, _ = await ctx.run_query(shop[billing.handles])
    return [await ctx.run_query(ctx.function(first), 1, 2), await ctx.run_mutation(ctx.function(second), 1, 2)]


@app.internal_action
async def action_calls_handles(ctx: ActionCtx) -> list[float]:
    first, second, third = (ctx.function(one) for one in await ctx.run_action(shop[billing.handles_of_action]))
    return [
        await ctx.run_query(first, 1, 2),
        await ctx.run_mutation(second, 1, 2),
        await ctx.run_action(third, 1, 2),
    ]


@app.internal_mutation
async def schedule_handles(ctx: MutationCtx) -> None:
    _, second, third = await ctx.run_query(shop[billing.handles])
    for one in (second, third):
        await ctx.scheduler.run_after(timedelta(0), ctx.function(one), 1, 2)


@app.internal_mutation
async def hand_over(ctx: MutationCtx) -> str:
    return await ctx.run_mutation(shop[billing.call_back], ctx.handle_of(reply))


async def test_handles_run_in_queries_mutations_and_actions(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        assert await test.run_query(query_calls_handles) == 3
        assert await test.run_mutation(mutation_calls_handles) == [3, 2]
        assert await test.run_action(action_calls_handles) == [4, 2, 0.5]
        assert await lines_of(test, shop) == ["1 by 2", "1 times 2", "1 times 2"]


async def test_handles_are_scheduled(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        await test.run_mutation(schedule_handles)
        await test.run_until_idle()
        assert await lines_of(test, shop) == ["1 by 2", "1 times 2"]


async def test_a_component_calls_back_what_the_program_hands_over(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        assert await test.run_mutation(hand_over) == "FROM BILLING"
        assert (await test.run_query(orders), await lines_of(test, shop)) == (["from billing"], ["called back"])
        for wrong in ("function://shop/flow.billing_component:gone", "shop/flow.billing_component:note", ""):
            with pytest.raises(FunctionNotFound, match="handle_of"):
                await test.run_mutation(shop[billing.call_back], wrong)


# ----- files


async def test_files_of_a_component_are_its_own(database_url: str) -> None:
    async with TestApp(app, database_url) as test, test.http as client:
        kept = await test.run_action(shop[billing.keep], "hello")
        url = await test.run_mutation(shop[billing.upload_url])
        sent = (await client.post(url[url.index("/api") :], content=b"more")).json()["storageId"]
        assert await test.run_query(shop[billing.files]) == [sent, kept]
        for other in (club[billing.url_of], club[billing.files]):
            arguments = (kept,) if other.name.endswith("url_of") else ()
            assert not await test.run_query(other, *arguments)
        assert await test.storage.get_url(kept) is None
        link = await test.run_query(shop[billing.url_of], kept)
        assert link is not None
        assert (await client.get(link[link.index("/api") :])).text == "hello"


# ----- declarations


def _taken(program: App) -> None:
    program.use(comments.app, name="shop")
    program.use(billing.app, name="shop")


def _table(program: App) -> None:
    program._tables.append(
        type("T", (Table,), {"__annotations__": {"x": int}, "__module__": __name__}, name="shop__line")
    )
    program.use(billing.app, name="shop")
    program.definitions()


def _outside(program: App) -> None:
    class Account(Table, source="account", key="number", managed=False):
        number: int

    program.use(App(tables=[Account]), name="part")


def _cron(program: App) -> None:
    @program.cron("0 9 * * *", name="shop/daily")
    async def daily(ctx: MutationCtx) -> None: ...

    program.use(billing.app, name="shop")


def _task(program: App) -> None:
    program.use(billing.app, name="shop")

    @program.reactive_task(billing.Line)
    async def react(ctx: MutationTaskCtx[billing.Line]) -> None: ...

    program.definitions()


def _open(_: App) -> None:
    part = App()

    @part.query
    async def anything(ctx: QueryCtx) -> int:
        return 1

    App(require_access=True).use(part, name="part", expose=[anything])


REFUSED: dict[str, Callable[[App], Any]] = {
    "cannot be called 'Shop'": lambda one: one.use(billing.app, name="Shop"),
    "cannot be called 'a__b'": lambda one: one.use(billing.app, name="a__b"),
    "cannot be called 'a/b'": lambda one: one.use(billing.app, name="a/b"),
    "at most 20": lambda one: one.use(billing.app, name="a" * 21),
    "'penstock_x' is reserved": lambda one: one.use(billing.app, name="penstock_x"),
    "is the program itself": lambda one: one.use(one, name="shop"),
    "two components called 'shop'": _taken,
    "public functions of its app, not <internal query": lambda one: one.use(
        billing.app, name="s", expose=[billing.lines]
    ),
    "public functions of its app, not <query kitchen": lambda one: one.use(
        billing.app, name="s", expose=[kitchen.recipe_page]
    ),
    "public functions of its app, not \\[1\\]": lambda one: one.use(billing.app, name="s", expose=[[1]]),  # type: ignore[list-item]
    "takes functions, not <query": lambda one: one.use(billing.app, name="s", expose=billing.mine),  # type: ignore[arg-type]
    "both have a cron called 'shop/daily'": _cron,
    "A pool cannot be called 'a/b'": lambda one: one.workpool("a/b"),
    "http_prefix is a path, not 'shop'": lambda one: one.use(billing.app, name="s", http_prefix="shop"),
    "paths below /api belong to penstock": lambda one: one.use(billing.app, name="s", http_prefix="/api"),
    "Two tables are named shop__line": _table,
    "a table of another program": _outside,
    "A task or an outbox is about Line": _task,
    "does not say who may call": _open,
}


@pytest.mark.parametrize("told", REFUSED)
def test_a_use_that_cannot_be_is_refused_when_it_is_declared(told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        REFUSED[told](App())


async def test_declarations_after_the_use_are_refused_at_the_start(database_url: str) -> None:
    part, program = App(), App()
    program.use(part, name="part")
    part.workpool("late")
    with pytest.raises(DeclarationError, match="has declared more"):
        async with TestApp(program, database_url):
            pass


def test_a_function_of_another_app_is_none_of_the_component() -> None:
    with pytest.raises(ContextError, match="is neither a function nor a pool of component shop"):
        shop[reply]
    with pytest.raises(ContextError, match="is neither a function nor a pool of component shop"):
        shop[{}]  # type: ignore[type-var]


# ----- nested


async def test_a_component_may_use_components(database_url: str) -> None:
    market, city = App(), App()
    stall = market.use(billing.app, name="stall", expose=[billing.mine])

    @market.internal_mutation
    async def sell(ctx: MutationCtx) -> None:
        await ctx.run_mutation(stall[billing.charge], "Ada", 1)

    @market.internal_query
    async def sold(ctx: QueryCtx) -> list[str]:
        return await ctx.run_query(stall[billing.customers])

    uses = [city.use(market, name=name) for name in ("north", "south")]
    async with TestApp(city, database_url) as test:
        await test.run_mutation(uses[0][sell])
        await test.run_until_idle()
        assert [await test.run_query(one[sold]) for one in uses] == [["Ada"], []]
        assert "north__stall__charge" in {one.name for one in city.definitions()}
        assert "south/stall/bank" in city.pools


# ----- the example


async def test_comments_are_shown_once_they_are_moderated(database_url: str) -> None:
    async with TestApp(kitchen.app, database_url) as test:
        ada = test.with_identity(issuer="test", subject="ada", name="Ada")
        await test.run_mutation(kitchen.set_up)
        soup = await test.run_mutation(kitchen.cook, "Soup")
        for text in ("Lovely.", "A horrible soup."):
            await ada.run_mutation(kitchen.comment, soup, text)
        assert await test.run_query(kitchen.recipe_page, soup) == []
        await test.run_until_idle()
        assert await test.run_query(kitchen.recipe_page, soup) == ["Ada: Lovely."]
        hidden = await test.run_query(kitchen.recipes[comments.latest], "hidden")
        assert [one.text for one in hidden] == ["A horrible soup."]
        assert await test.run_query(kitchen.guest_book[comments.latest], "hidden") == []
