"""Files: their rows in transactions, and their bytes."""

from __future__ import annotations

import pytest

from penstock import ActionCtx, App, File, Id, MutationCtx, QueryCtx, Table, public
from penstock.testing import TestApp

app = App()


class Picture(Table):
    file: Id[File]
    title: str


@app.mutation(access=public)
async def ask(ctx: MutationCtx) -> str:
    return await ctx.storage.generate_upload_url()


@app.action(access=public)
async def keep(ctx: ActionCtx, text: str) -> Id[File]:
    return await ctx.storage.store(text.encode(), content_type="text/plain")


@app.query(access=public)
async def url(ctx: QueryCtx, file: Id[File]) -> str | None:
    return await ctx.storage.get_url(file)


@pytest.mark.both_stores
async def test_thread(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        found = await backend.run_action(keep, "hello")
        where = await backend.run_query(url, found)
        answer = await backend.http.get(where)
        assert (answer.status_code, answer.content) == (200, b"hello")
        up = await backend.run_mutation(ask)
        answer = await backend.http.post(up, content=b"x" * 100_000, headers={"content-type": "image/png"})
        print(answer.text)
        assert answer.status_code == 200
