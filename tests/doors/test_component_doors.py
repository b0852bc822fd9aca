"""Components at the doors: the command line, clients, snapshots, migrations and the dashboard know their prefix."""

from __future__ import annotations

import json
import re

import comments
import kitchen
from doors.board_fixtures import board
from doors.cli_fixtures import Console

PART = """
from datetime import timedelta

from penstock import App, Id, MutationCtx, QueryCtx, SearchIndex, Table, public

app = App()
pool = app.workpool("later")


class Comment(Table):
    text: str
    parent: Id["Comment"] | None = None

    by_text = SearchIndex("text")


@app.mutation(access=public)
async def add(ctx: MutationCtx, text: str, parent: Id[Comment] | None = None) -> Id[Comment]:
    await pool.enqueue(ctx, note, text)
    return await ctx.db.insert(Comment(text=text, parent=parent))


@app.query(access=public)
async def thread(ctx: QueryCtx) -> list[Comment]:
    return await ctx.db.query(Comment).order("asc").take(10)


@app.internal_mutation
async def note(ctx: MutationCtx, text: str) -> None:
    print("noted", text)
"""
PROGRAM = """
import part
from penstock import App, QueryCtx, Table, public

app = App()
news = app.use(part.app, name="news", expose=[part.thread, part.add])
blog = app.use(part.app, name="blog", expose=[part.thread])


class Comment(Table):
    title: str


@app.query(access=public)
async def titles(ctx: QueryCtx) -> list[Comment]:
    return await ctx.db.query(Comment).take(10)


@app.query(access=public)
async def relayed(ctx: QueryCtx) -> list[part.Comment]:
    return await ctx.run_query(news[part.thread])
"""


def begin(console: Console, program: str = PROGRAM) -> None:
    console.write("part.py", PART)
    console.write("program.py", program)
    console.write("penstock.toml", 'app = "program"\ndatabase = "sqlite:///here.db"\n')
    console.ok("migrate")


def test_the_command_line_calls_and_lists_by_the_prefix(console: Console) -> None:
    begin(console)
    first = console.ok("run", "news/add", "text=hello").json
    console.ok("run", "news/part:add", "text=again", f"parent={first}")
    assert [one["text"] for one in console.ok("run", "news/thread").json] == ["hello", "again"]
    assert console.ok("run", "blog/thread").json == []
    assert "Did you mean" in console("run", "thread").err
    listed = console.ok("functions").out
    assert "news/part:note" in listed
    assert "program:titles" in listed
    assert {one["table"] for one in console.ok("data", "--json").json} == {"comment", "news__comment", "blog__comment"}
    assert "hello" in console.ok("data", "news__comment").out
    assert "hello" not in console.ok("data", "Comment").out, "a class names the table of the program"
    assert "news/later" in console.ok("pools").out
    assert "news/part:note" in console.ok("jobs").out


def test_clients_have_a_name_for_each_table(console: Console) -> None:
    begin(console)
    console.ok("codegen", "--out", "all", "--typescript", "--python", "--openapi")
    api, model = ((console.folder / "all" / name).read_text("utf-8") for name in ("api.d.ts", "dataModel.d.ts"))
    assert '{ news: { part: {\n  add: FunctionReference<"mutation", "public"' in api
    assert 'Array<Doc<"news__comment">>' in api
    assert 'Array<Doc<"blog__comment">>' in api
    names = [line.split('"')[1] for line in model.splitlines() if line.startswith('  "')]
    assert sorted(names) == ["blog__comment", "comment", "news__comment"], "each once"
    assert 'parent: Id<"news__comment"> | null' in model
    described = json.loads((console.folder / "all" / "openapi.json").read_text("utf-8"))
    assert "/rest/news/part/add" in described["paths"]
    assert console.ok("codegen", "--out", "all", "--check", "--typescript", "--python", "--openapi").err == ""
    spec = {one["identifier"]: one for one in console.ok("function-spec").json["functions"]}
    assert spec["news/part.js:thread"]["visibility"] == {"kind": "public"}
    assert spec["blog/part.js:add"]["visibility"] == {"kind": "internal"}


def test_snapshots_bring_the_rows_of_each_use_back(console: Console) -> None:
    begin(console)
    console.ok("run", "news/add", "text=hello")
    console.ok("export", "-o", "all.zip")
    console.write("penstock.toml", 'app = "program"\ndatabase = "sqlite:///there.db"\n')
    console.ok("migrate")
    console.ok("import", "all.zip")
    assert [one["text"] for one in console.ok("run", "news/thread").json] == ["hello"]
    assert console.ok("run", "blog/thread").json == []
    line = b'{"text": "by hand"}\n'
    console.ok("import", "blog__comment", "-", stdin=line)
    assert console.ok("run", "blog/thread").json[0]["_id"].startswith("comment_")


def test_a_component_that_is_removed_or_renamed_keeps_its_rows_and_jobs(console: Console) -> None:
    begin(console)
    console.ok("run", "news/add", "text=hello")
    without = PROGRAM.replace('news = app.use(part.app, name="news", expose=[part.thread, part.add])', "news = {}")
    without = without.replace("news[part.thread]", "blog[part.thread]")
    begin(console, without)
    told = console.ok("migrate").err
    assert "news__comment is of a component that no program uses any more, and keeps its rows" in told
    assert "blog__comment is" not in told
    assert console.ok("migrate", "--check").code == 0
    renamed = without.replace('name="blog"', 'name="news"')
    console.write("program.py", renamed)
    assert "blog__comment is of a component" in console.ok("migrate", "--plan").out
    assert [one["text"] for one in console.ok("run", "news/thread").json] == ["hello"], (
        "under its name it is there again"
    )
    assert "news/part:note" in console.ok("jobs").out


async def test_the_dashboard_shows_and_changes_rows_of_components(database_url: str) -> None:
    async with board(kitchen.app, database_url) as one:
        ada = one.test.with_identity(issuer="test", subject="ada")
        await ada.run_mutation(kitchen.guest_book[comments.add], "2030", "Hello.")
        await one.test.run_until_idle()
        (row,) = await one.test.run_query(kitchen.guest_book[comments.thread], "2030")
        assert "guest_book__comment" in await one.get("/data")
        assert "Hello." in await one.get("/data/guest_book__comment")
        assert "Hello." not in await one.get("/data/recipes__comment")
        path = f"/data/guest_book__comment/row?key={row.id}"
        assert "Hello." in await one.get(path)
        shown = await one.see(path)
        form = dict(re.findall(r'name="was\.(\w+)" value="([^"]*)"', shown))
        sent = {f"was__{name}": value for name, value in form.items()}
        sent |= {f"arg__{name}": value for name, value in form.items()} | {"arg__text": "Changed."}
        assert (await one.send(path, act="edit", **sent)).status_code == 303
        (row,) = await one.test.run_query(kitchen.guest_book[comments.thread], "2030")
        assert row.text == "Changed."
        assert "guest_book/comments.moderation:add" in await one.get("/functions")
        assert "guest_book/comments.moderation:review" in await one.get("/tasks")
        timeline = await one.get(f"/timeline?of={row.id}")
        assert "recipes__comment or guest_book__comment" in timeline, "both have ids of this form"
        assert "for task guest_book/comments.moderation:review" in timeline
