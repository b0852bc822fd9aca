"""Text search: rows by their words, whoever wrote them."""

from __future__ import annotations

from typing import Any

import pytest
from stage.stories import tell_in

from penstock import App, QueryCtx, SearchIndex, Table
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores


class Note(Table):
    channel: str
    body: str

    by_body = SearchIndex("body", filters=("channel",))


app = App(tables=[Note])
write, read, _ = tell_in(app)


async def bodies(test: TestApp, text: str, **given: Any) -> list[str]:
    async def story(ctx: QueryCtx) -> list[str]:
        return [note.body for note in await ctx.db.query(Note).with_search_index(Note.by_body, text, **given).take(20)]

    found: list[str] = await test.run_query(read, story)
    return found


async def test_a_search_finds_rows_at_once(database_url: str) -> None:
    async with TestApp(app, database_url) as test:
        for body in ("hello world", "Hello", "good bye"):
            await test.run_mutation(write, lambda ctx, body=body: ctx.db.insert(Note(channel="a", body=body)))
        assert await bodies(test, "hello wor") == ["hello world", "Hello"]
        assert await bodies(test, "hello wor", match="all") == ["hello world"]
        assert await bodies(test, "hello", channel="b") == []
