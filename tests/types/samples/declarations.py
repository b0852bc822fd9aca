"""Decorators: which ctx, and which functions, each kind takes."""

from typing import Any, assert_type

from samples.shop import Customer, fold, upcoming

from penstock import ActionCtx, App, MutationCtx, QueryCtx, sync

app = App()


@app.query
async def a_query(ctx: QueryCtx) -> int:
    return 1


@app.mutation
async def a_mutation_that_only_reads(ctx: QueryCtx) -> int:
    return 1


@app.internal_mutation
async def a_mutation(ctx: MutationCtx) -> None: ...


@app.internal_action(runtime="thread")
def an_action_in_a_thread(ctx: sync.ActionCtx, names: list[str]) -> Any:
    return names


@app.query()
async def a_query_with_parentheses(ctx: QueryCtx) -> int:
    return 1


@app.query  # refused: arg-type
async def a_query_that_would_write(ctx: MutationCtx) -> int:
    return 1


@app.query  # refused: arg-type
def a_query_that_could_not_await(ctx: QueryCtx) -> int:
    return 1


@app.mutation  # refused: arg-type
async def a_mutation_that_would_act(ctx: ActionCtx) -> int:
    return 1


@app.query  # refused: arg-type
async def a_query_without_ctx() -> int:
    return 1


@app.action(runtime="moon")  # refused: call-overload, untyped-decorator
def an_action_far_away(ctx: sync.ActionCtx) -> int:
    return 1


@app.internal_action(runtime="process")  # refused: arg-type
def an_action_in_a_process(ctx: ActionCtx) -> int:
    return 1


App(tables=[Customer], max_rows_read=100)
App(tables=[Customer(name="Ada")])  # refused: list-item
assert_type(upcoming.name, str)
assert_type(fold.public, bool)
