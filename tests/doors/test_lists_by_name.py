"""Lists of crons and tasks: a part of a name as a filter, and pages, on each door."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from doors.board_fixtures import board

from penstock import ActionCtx, App, Table, TaskCtx
from penstock.dashboard.page import page_of
from penstock.operations import crons, tasks
from penstock.operations.operation import select
from penstock.testing import TestApp

app = App(admin_token="let-me-in-please")
HEADERS = {"authorization": "Bearer let-me-in-please"}


@dataclass
class One:
    name: str


class Pear(Table, name="pear_of_lists"):
    name: str


@app.internal_action
async def act(ctx: ActionCtx) -> None: ...


for name in ("mail", "Mail again", "zoo"):
    app.crons.declare(name, timedelta(hours=1), act)


@app.reactive_task(Pear, name="peel")
async def peel(ctx: TaskCtx[Pear]) -> None: ...


@app.reactive_task(Pear, name="slice")
async def cut(ctx: TaskCtx[Pear]) -> None: ...


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ["Mail again", "mail", "zoo"]),
        ({"text": "MAIL"}, ["Mail again", "mail"]),
        ({"limit": 1}, ["Mail again"]),
        ({"after": "Mail again", "limit": 1}, ["mail"]),
        ({"text": "o", "after": "mail"}, ["zoo"]),
        ({"text": "none"}, []),
        ({"text": "", "after": None, "limit": None}, ["Mail again", "mail", "zoo"]),
    ],
)
async def test_crons_are_listed_by_name(database_url: str, given: dict[str, Any], names: list[str]) -> None:
    async with TestApp(app, database_url) as backend:
        assert [one.name for one in (await crons.every.run(backend, given))["crons"]] == names
        words = {name: value for name, value in given.items() if value}
        answer = await backend.http.get("/admin/crons", params=words, headers=HEADERS)
        assert [one["name"] for one in answer.json()["crons"]] == names


async def test_tasks_are_listed_by_name(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        for given, names in (({}, ["peel", "slice"]), ({"text": "LIC"}, ["slice"]), ({"after": "peel"}, ["slice"])):
            assert [one.name for one in (await tasks.every.run(backend, given))["tasks"]] == names


def test_each_page_begins_where_the_one_before_has_ended() -> None:
    found = [One(f"name {number:03}") for number in range(250)][::-1]
    seen, after, pages = list[str](), None, 0
    while pages == 0 or after is not None:
        shown, words = page_of(found, {"text": "NAME", "after": after})
        seen += [one.name for one in shown]
        pages += 1
        after = None if words["more"] is None else shown[-1].name
        assert words["more"] == (None if after is None else f"text=NAME&after=name+{after[-3:]}")
        assert (words["text"], words["filtered"]) == ("NAME", True)
    assert (seen, pages) == ([f"name {number:03}" for number in range(250)], 3)
    assert select(found, {"after": "name 248"}) == [One("name 249")]


async def test_the_pages_of_the_dashboard_have_the_filter() -> None:
    async with board(app) as page:
        for path, text, shown, hidden in (("/crons", "MAIL", "Mail again", "zoo"), ("/tasks", "lic", "slice", "peel")):
            found = (await page.here.get(path, params={"text": text})).text
            assert (f'name="text" value="{text}"' in found, shown in found, f">{hidden}<" in found) == (
                True,
                True,
                False,
            )
            assert "matches." in (await page.here.get(path, params={"text": "nothing"})).text
            assert f">{hidden}<" in (await page.here.get(path)).text
