"""Tickets of many companies in one database. ``penstock serve --services`` runs the program.

The claim ``company`` of a token says whose rows its bearer sees. The program that signs tokens shares ``LOGIN_SECRET``.
"""

import os
from typing import Any

from penstock import ActionCtx, App, CustomJWT, Id, Identity, Index, MutationCtx, QueryCtx, Rules, Table, signed_in

app = App(auth=[CustomJWT(issuer="login", secret=os.environ["LOGIN_SECRET"], algorithm="HS256")])
mail = app.workpool("mail", max_parallelism=10, key_parallelism=2)  # so that no company takes all ten


def is_own(row: Any, identity: Identity) -> Any:
    return row.company == identity.claims.get("company")


class Ticket(Table):
    company: str
    text: str

    by_company = Index("company")
    rules = Rules(read=is_own, insert=is_own, patch=is_own, delete=is_own)


@app.mutation(access=signed_in)
async def write(ctx: MutationCtx, company: str, text: str) -> Id[Ticket]:
    ticket = await ctx.db.insert(Ticket(company=company, text=text))
    await mail.with_options(concurrency_key=company).enqueue(ctx, tell, ticket)
    return ticket


@app.mutation(access=signed_in)
async def close(ctx: MutationCtx, ticket: Id[Ticket]) -> None:
    await ctx.db.delete(Ticket, ticket)


@app.query(access=signed_in)
async def tickets(ctx: QueryCtx) -> list[str]:
    """No word of companies: the rules are part of the SQL."""
    return [ticket.text for ticket in await ctx.db.query(Ticket).order("desc").take(50)]


@app.internal_query
async def text_of(ctx: QueryCtx, ticket: Id[Ticket]) -> str | None:
    found = await ctx.db.get(Ticket, ticket)  # jobs act for the system, and see all rows
    return f"{found.company}: {found.text}" if found else None


@app.internal_action
async def tell(ctx: ActionCtx, ticket: Id[Ticket]) -> None:
    print(await ctx.run_query(text_of, ticket))
