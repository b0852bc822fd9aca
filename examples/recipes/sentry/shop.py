"""Errors of functions, jobs and tasks in Sentry. ``penstock serve --services`` runs the program."""

import os

import sentry_sdk
from sentry_sdk.types import Event, Hint

from penstock import ActionCtx, App, Id, MutationCtx, Retry, Table, TaskCtx, public


def describe(event: Event, hint: Hint) -> Event:
    """Name the function, the job and the request, by which Sentry then groups and searches."""
    facts = getattr(hint.get("log_record"), "facts", {})
    if function := facts.get("function") or facts.get("task"):
        event["transaction"] = function
    tags = {name: str(facts[name]) for name in ("function", "job", "request_id", "trace") if facts.get(name)}
    event["tags"] = {**dict(event.get("tags") or {}), **tags}
    return event


sentry_sdk.init(dsn=os.environ["SENTRY_DSN"], before_send=describe)
app = App()
mail = app.workpool("mail", default_retry=Retry(max_attempts=2, initial_backoff=0.1))


class Order(Table):
    customer: str


@app.mutation(access=public)
async def place(ctx: MutationCtx, customer: str) -> Id[Order]:
    if not customer:
        raise ValueError("no customer")
    order = await ctx.db.insert(Order(customer=customer))
    await mail.with_options(retry=True).enqueue(ctx, confirm, customer)
    return order


@app.internal_action
async def confirm(ctx: ActionCtx, customer: str) -> None:
    raise ConnectionError(f"no line to {customer}")


@app.reactive_task(Order, retry=Retry(max_attempts=2, initial_backoff=0.1))
async def ship(ctx: TaskCtx[Order]) -> None:
    order = await ctx.get_document()
    raise LookupError(f"no address of {order.customer}")
