"""The app, its pools, and who may do what."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from penstock import AccessDenied, App, Id, MutationCtx, QueryCtx, Retry, signed_in

from .schema import Audit, Order, Staff

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

office = App()
PAYMENTS_URL = os.environ["PAYMENTS_URL"]
ONE_AT_A_TIME = 1

mails = office.workpool("mails", max_parallelism=20)
payments = office.workpool("payments", max_parallelism=4, retry_actions_by_default=True)
printers = office.workpool(
    "printers",
    max_parallelism=ONE_AT_A_TIME,
    default_retry=Retry(max_attempts=6, initial_backoff=30, base=2),  # expect: PEN018
)
turnstiles = office.workpool("turnstiles", max_parallelism=1, default_retry=Retry(max_attempts=3, initial_backoff=0.1))


async def is_staff(ctx: QueryCtx) -> bool:
    identity = await ctx.auth.get_user_identity()
    if identity is None:
        return False
    return await ctx.db.query(Staff).with_index(Staff.by_user, user=identity.token_identifier).unique() is not None


async def is_buyer(ctx: QueryCtx, order: Id[Order]) -> bool:
    found = await ctx.db.get(Order, order)
    return found is not None and found.buyer == (await ctx.auth.require()).token_identifier


async def has_email(ctx: QueryCtx, order: Id[Order], email: str) -> bool:
    found = await ctx.db.get(Order, order)
    return found is not None and found.email == email


member_mutation = partial(office.mutation, access=signed_in)
open_query = partial(office.query)


def staff_mutation(function: F) -> Any:
    return office.mutation(access=is_staff)(function)


async def record(ctx: MutationCtx, who: str, what: str, **details: Any) -> None:
    await ctx.db.insert(Audit(who=who, what=what, details=details))


async def require_role(ctx: QueryCtx, role: str) -> Staff:
    identity = await ctx.auth.require()
    found = await ctx.db.query(Staff).with_index(Staff.by_user, user=identity.token_identifier).unique()
    if found is None or found.role != role:
        raise AccessDenied("This is for the staff.")
    return found


async def require_staff_email(ctx: QueryCtx, email: str) -> None:
    found = await ctx.db.query(Staff).with_index(Staff.by_email, email=email).first()
    if found is None or found.role != "manager":
        raise AccessDenied("This is for managers.")
