"""Vectors on the doors: the dashboard shortens them, they travel between the stores, and clients get ids and scores."""

from __future__ import annotations

from typing import Any

import pytest
from doors.board_fixtures import board
from doors.cli_fixtures import Console

from penstock import ActionCtx, App, Id, MutationCtx, QueryCtx, Table, VectorHit, VectorIndex, public
from penstock.codegen.description import describe
from penstock.codegen.typescript import typescript_files
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

app = App()


class Picture(Table):
    album: str
    embedding: list[float] | None = None

    by_look = VectorIndex("embedding", dimensions=12, filters=("album",))


@app.mutation(access=public)
async def add(ctx: MutationCtx, album: str, first: float) -> Id[Picture]:
    return await ctx.db.insert(Picture(album=album, embedding=[first, *[0.25] * 11]))


@app.action(access=public)
async def alike(ctx: ActionCtx, vector: list[float], album: str) -> list[VectorHit[Picture]]:
    return await ctx.vector_search(Picture.by_look, vector, limit=2, album=album)


@app.query(access=public)
async def watched(ctx: QueryCtx, vector: list[float], albums: list[str]) -> list[Picture | None]:
    return [await ctx.db.get(Picture, hit.id) for hit in await ctx.vector_search(Picture.by_look, vector, album=albums)]


async def test_the_dashboard_shows_the_beginnings_of_vectors_and_their_indexes(vector_url: str) -> None:
    async with board(app, vector_url) as one:
        row = await one.test.run_mutation(add, "a", 0.125)
        shown = "[0.125, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, …] of 12 numbers"
        assert shown in await one.see("/data/picture")
        page = await one.see(f"/data/picture/row?key={row}")
        assert f"<dd>{shown}</dd>" in page
        assert "vectors of embedding, album" in await one.get("/schema")


async def test_clients_get_ids_and_scores(vector_url: str) -> None:
    async with TestApp(app, vector_url) as test:
        near, _ = [await test.run_mutation(add, "a", first) for first in (9.0, 0.0)]
        await test.run_mutation(add, "b", 9.0)
        args: dict[str, Any] = {"vector": [1.0, *[0.0] * 11], "album": "a"}
        answer = await test.http.post("/api/action", json={"path": "test_vector_doors:alike", "args": args})
        assert answer.json()["value"][0] == [near, 0.995783]


def test_generated_clients_know_the_type_of_what_a_search_gives() -> None:
    written = "".join(typescript_files(describe([alike])).values())
    assert 'VectorHit_Picture = [Id<"picture">, number]' in written


def test_vectors_go_to_another_store_and_back_and_wrong_ones_are_named(
    console: Console, sqlite_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_APP", f"{__name__}:app")
    for url in (sqlite_url, postgres_url):
        console.ok("migrate", "--database", url)
    for first in ("0.1", "1e-7"):
        console.ok("run", "add", f'{{"album": "a", "first": {first}}}', "--database", sqlite_url)
    exported = console.ok("export", "picture", "-o", "-", "--database", sqlite_url).out
    console.ok("import", "picture", "-", "--database", postgres_url, stdin=exported.encode())
    assert console.ok("export", "picture", "-o", "-", "--database", postgres_url).out == exported
    wrong = console(
        "import", "picture", "-", "--append", "--database", postgres_url, stdin=b'{"album": "a", "embedding": [1]}'
    )
    assert wrong.code != 0
    assert "this vector has 1 dimensions, and its index 12" in wrong.err
