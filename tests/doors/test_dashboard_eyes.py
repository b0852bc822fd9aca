"""How the dashboard shows why something is slow: charts, states with counts, checked jobs, and the search."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from doors.board_fixtures import board, text_of

from penstock import ActionCtx, App, JobFilter, MutationCtx, Retry, Table, TaskCtx
from penstock.dashboard.charts import Chart, Line, number_text
from penstock.store.nouns.logbook import HALF_HOUR, half_hour_of, minute_of

app = App()
mail = app.workpool("mail", max_parallelism=3, default_retry=Retry.fixed(3600, max_attempts=2))
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


class Letter(Table, name="letter_of_eyes"):
    to: str


@app.mutation
async def write(ctx: MutationCtx, to: str) -> str:
    return str(await ctx.db.insert(Letter(to=to)))


@app.action
async def send(ctx: ActionCtx, to: str, password: str = "") -> str:
    if to.startswith("no"):
        raise ConnectionError(f"no way to {to}")
    return to


@app.outbox(Letter)
async def announce(ctx: ActionCtx, letter: Letter) -> None: ...


@app.reactive_task(Letter)
async def stamp(ctx: TaskCtx[Letter]) -> None: ...


PAGES = (
    "/",
    f"/functions/{send.name}",
    "/work?pool=mail",
    "/tasks/task?task=test_dashboard_eyes:stamp",
    "/outboxes/outbox?outbox=test_dashboard_eyes:announce",
)


@pytest.mark.both_stores
async def test_charts_show_the_numbers_of_the_cluster_over_each_span(database_url: str) -> None:
    async with board(app, database_url) as one:
        book, now = one.test.engine.store.logbook, one.test.clock.now()
        numbers = {
            f"pool {mail.name}": {"success": 120.0, "failed": 60.0, "retrying": 6.0, "-6": 180.0, "lag 4": 180.0}
        }
        for back in (5 * MINUTE, 20 * HOUR, timedelta(days=6)):
            await book.write(now - back, numbers, [])
        await book.sample(now - 5 * MINUTE, {"pool mail": {"samples": 2.0, "ready": 14.0, "oldest": 90.0}})
        shown = await one.see("/work?pool=mail")
        assert "Jobs ended a second: jobs ended 0 now, at most 3" in shown
        assert "Jobs failed a minute: failed 0 now, at most 60, retried 0 now, at most 6" in shown
        assert "Share that failed: failed 33.3 % now, at most 33.3 %" in shown
        assert "Jobs ready to start: ready 7 now, at most 7" in shown
        assert re.search(r"Time from due to start: p50 3\.\d s now", shown)
        assert re.search(r"Time of a run: p50 105 ms now, at most 105 ms, p95 105 ms", shown)
        day = await one.see("/work?pool=mail&span=day")
        assert "Jobs ended a second: jobs ended 0.1 now, at most 0.1" in day
        week = await one.see("/work?pool=mail&span=week")
        assert week.count('data-shown="day"') == 6 * 5, "five times at each axis"
        assert "?pool=mail&span=hour" in week
        assert "span is one of hour, day, week." in await one.get("/?span=year", 400)
        for path in PAGES:
            assert await one.see(path)


def test_a_line_has_gaps_and_an_axis_ends_at_a_round_number() -> None:
    values = [None, 5.0, None, 1.0, 2.0, None]
    chart = Chart("Waiting", [Line("jobs", values), Line("none", [None] * 6)], 5.0, number_text)
    assert chart.path(chart.lines[0]) == "M1 0h.5M3 80L4 60"
    assert chart.path(chart.lines[1]) == ""
    assert chart.summary == "Waiting: jobs 2 now, at most 5, none nothing"
    assert [number_text(one) for one in (None, 0, 0.123, 12, 12.34, 1234.5)] == ["-", "0", "0.12", "12", "12", "1,234"]


async def test_states_are_counted_and_checked_jobs_are_changed_alone(database_url: str) -> None:
    async with board(app, database_url) as one:
        bad = [await mail.with_options(retry=False).enqueue(one.test, send, to="nobody") for _ in range(3)]
        waits = await mail.with_options(retry=True).enqueue(one.test, send, to="nowhere")
        await one.test.run_until_idle(advance=False, raise_errors=False)
        later = [await mail.with_options(run_after=HOUR).enqueue(one.test, send, to=to) for to in "ab"]
        await mail.enqueue(one.test, send, to="c")
        page = await one.get("/work")
        assert "all ready 1 scheduled 2 retrying 1 running 0 completing success failed 3 canceled skipped" in page
        page = await one.see("/work?state=retrying")
        assert waits in page
        assert later[0] not in page
        assert "ready 1" not in await one.get("/work?pool=mail"), "a count of all jobs would mislead here"
        told = await one.here.post("/work", content=f"act=retry+chosen&job={bad[0]}&job={bad[1]}&job={later[0]}")
        assert told.status_code == 303
        assert "2 jobs retried, of 3." in await one.get("/work?state=failed")
        stages = [(await one.test.jobs(where=JobFilter(state=stage))) for stage in ("ready", "failed", "scheduled")]
        assert [{job.id for job in jobs} & {*bad, later[0]} for jobs in stages] == [{*bad[:2]}, {bad[2]}, {later[0]}]
        asked = await one.here.post("/work", content=f"act=cancel+chosen&job={later[0]}&job={later[1]}")
        assert "Cancel 2 jobs?" in text_of(asked)
        assert await one.act("/work", "cancel chosen", job=" ".join(later), sure="yes") == (
            "Asked for 2 jobs to be canceled, of 2."
        )
        assert await one.act("/work", "retry chosen") == "Not done: Fill in job."


@pytest.mark.both_stores
async def test_the_overview_says_which_functions_fail_since_when_and_why(database_url: str) -> None:
    async with board(app, database_url) as one:
        book, minute = one.test.engine.store.logbook, minute_of(one.test.clock.now())
        for back, error in ((59, 1.0), (20, 3.0), (15, 2.0), (10, 1.0), (5, 1.0)):
            await book.write(minute - back * MINUTE, {f"function {send.name}": {"success": 9.0, "error": error}}, [])
        job = await mail.with_options(retry=False).enqueue(one.test, send, to='<b>"you"')
        no = await mail.with_options(retry=False).enqueue(one.test, send, to="no <b>")
        await one.test.run_until_idle(advance=False, raise_errors=False)
        table = (await one.see("/")).partition('data-live="failing"')[2].partition("</section>")[0]
        assert f"/functions/{send.name.replace(':', '%3A')}" in table
        assert re.search(r">9 of 55 <small>16 %<", table)
        assert (minute - 20 * MINUTE).isoformat() in table, "where the last errors without a calm began"
        assert no in table
        assert job not in table
        assert "no way to no &lt;b" in (await one.here.get("/")).text
        long = (await one.here.get("/work?state=failed")).text
        assert f"/jobs/{no}" in long
        for back in (54, 48, 42, 36, 30, 26):
            await book.write(minute - back * MINUTE, {f"function {send.name}": {"error": 1.0}}, [])
        one.test.clock.advance(6 * MINUTE)
        for half_hours in (2, 4, 20):
            at = half_hour_of(one.test.clock.now()) - half_hours * HALF_HOUR
            await book.write(at, {f"function {send.name}": {"error": 1.0}}, [])
        shown = (await one.see("/")).partition('data-live="failing"')[2].partition("</section>")[0]
        assert (half_hour_of(one.test.clock.now()) - 4 * HALF_HOUR).isoformat() in shown
    async with board(app) as one:
        assert "failed in the last hour" not in await one.get("/")


@pytest.mark.both_stores
async def test_a_filter_looks_at_a_bounded_number_of_ended_jobs_and_says_so(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.store.nouns.jobs.LOOKED_AT", 2)
    monkeypatch.setattr("penstock.dashboard.pages.work.LOOKED_AT", 2)
    async with board(app, database_url) as one:
        jobs = [await mail.with_options(key=to).enqueue(one.test, send, to=to) for to in "abcdefg"]
        await one.test.run_until_idle()
        pages, path = [], "/work?key=b"
        while path:
            page = await one.see(path)
            found = [job for job in jobs if f"/jobs/{job}" in page]
            pages.append(found)
            assert ("Of the jobs that have ended, 2 were looked at." in page) is ("Older jobs" in page)
            more = re.search(r'href="(\?[^"]*after=[^"]*)"', page)
            path = f"/work{more[1]}" if more else ""
        assert [one for found in pages for one in found] == [jobs[1]]
        assert len(pages) == 3
        assert "looked at" not in await one.get("/work")


async def test_one_box_finds_ids_keys_names_and_errors_and_no_secrets(database_url: str) -> None:
    async with board(app, database_url) as one:
        row = await one.test.run_mutation(write, "Ada")
        options = mail.with_options(key="order-7", retry=False)
        job = await options.enqueue(one.test, send, to='nobody\'s "home"', password="hunter2")
        await one.test.run_until_idle(raise_errors=False)
        for sought, path in (
            (job, f"/jobs/{job}"),
            (row, f"/data/letter_of_eyes/row?key={row}"),
            ("ab" * 16, "/timeline?of="),
        ):
            answer = await one.here.get("/search", params={"for": f" {sought} "})
            assert answer.status_code == 303
            assert answer.headers["location"].startswith(f"/dashboard{path}")
        for sought in ("order-7", 'no way to nobody\'s "home"'):
            assert job in await one.see(f"/search?for={sought}"), sought
        found = await one.links("/search?for=SEND")
        assert f"/functions/{send.name.replace(':', '%3A')}" in found
        found = await one.links("/search?for=e")
        assert {"/data/letter_of_eyes", "/work?pool=default"} <= found
        for nothing in ("hunter2", "<script>alert(1)</script>", "%", "job_" + "7" * 26, "z\0z", "x" * 5000):
            answer = await one.here.get("/search", params={"for": nothing})
            assert answer.status_code == 200
            assert "Nothing was found" in answer.text
            assert "<script>alert" not in answer.text
        assert "The box on each page" in await one.get("/search")


async def test_runs_are_linked_to_their_jobs_the_slowest_and_the_failed_ones_apart(database_url: str) -> None:
    async with board(app, database_url) as one:
        jobs = [await mail.with_options(retry=False).enqueue(one.test, send, to=to) for to in ("a", "no b")]
        await one.test.run_until_idle(raise_errors=False)
        await one.test.run_action(send, to="c")
        shown = await one.see(f"/functions/{send.name}")
        parts = {
            name: shown.partition(f'data-live="{name}"')[2].partition("</section>")[0]
            for name in ("slowest", "failed", "runs")
        }
        assert jobs[1] in parts["failed"]
        assert jobs[0] not in parts["failed"]
        assert all(job in parts["runs"] for job in jobs)
        assert len(re.findall("<tr data-key", parts["slowest"])) == 1
        assert "no way to no b" in parts["failed"]
        assert json.dumps("hunter2") not in shown
