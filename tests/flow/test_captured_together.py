"""Two tasks and an outbox on one table: a write fires one trigger and appends one row, and all of them hear of it."""

from __future__ import annotations

from stage.outboxes import OutboxStage, drain, sql

from penstock import Table
from penstock.testing import TestApp


class Part(Table, name="part", live=False):
    note: str
    state: str = "new"
    weight: int = 0


async def feed_rows(test: TestApp) -> int:
    feed = "penstock.change" if test.engine.store.dialect.schemas else "penstock_change"
    return int((await sql(test, f"select count(*) from {feed}"))[0][0])


async def test_two_tasks_and_an_outbox_hear_of_a_write_by_one_row(database_url: str) -> None:
    stage = OutboxStage(Part)
    stage.task(Part, "weigh", watch=("weight",))
    stage.task(Part, "pack", filter=lambda part: part.state == "ready", watch=("note",))
    stage.outbox(Part, on=("insert", "update", "delete"))
    async with stage.open(database_url) as test:
        schemas = test.engine.store.dialect.schemas
        names = (
            "select tgname from pg_trigger where tgrelid = 'part'::regclass and tgenabled <> 'R' order by 1"
            if schemas
            else "select name from sqlite_schema where type = 'trigger' and tbl_name = 'part' order by 1"
        )
        events = ["delete", "insert", *["truncate"] * schemas, "update"]
        assert [row[0].rpartition("_")[2] for row in await sql(test, names)] == events
        told = list[tuple[int, list[tuple[str, str]], list[str]]]()
        (part,) = await stage.insert(test, Part(note="bolt"))
        for change in ({}, {"state": "ready"}, {"weight": 2}, {"note": "nut"}, {"note": "cap", "weight": 3}):
            before = await feed_rows(test) if change else 0
            if change:
                await stage.patch(test, Part, part, **change)
            rows = await feed_rows(test) - before
            await test.run_until_idle()
            await drain(test)
            told.append((rows, sorted((one.task, one.change) for one in stage.taken()), stage.texts()))
        assert told == [
            (1, [("weigh", "enter")], ["bolt"]),
            (1, [("pack", "enter")], ["update bolt"]),
            (1, [("weigh", "change")], ["update bolt"]),
            (1, [("pack", "change")], ["update nut"]),
            (1, [("pack", "change"), ("weigh", "change")], ["update cap"]),
        ]
        states = [row.state for row in await test.engine.store.interests.list() if row.interest.table == "part"]
        assert states == ["ok"] * 3
