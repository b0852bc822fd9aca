"""The pages of workflows: runs, and the waterfall of one, without secrets and without text of users as markup."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta

import httpx
import pytest

from penstock import ActionCtx, App, Retry, WorkflowCtx, asgi_app
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores
HOSTILE = "<script>alert(1)</script>"
app = App()
said = app.event("said", str)


@app.internal_action
async def call(ctx: ActionCtx, what: str, password: str) -> dict[str, str]:
    if what == "bad":
        raise ValueError(HOSTILE)
    return {"said": what, "token": "hush-hush"}


@app.workflow
async def flow(ctx: WorkflowCtx, what: str) -> str:
    await asyncio.gather(ctx.run_action(call, what, "hush-hush"), ctx.run_action(call, "good", "hush-hush"))
    await ctx.sleep(timedelta(hours=1))
    try:
        await ctx.with_options(retry=Retry(max_attempts=2, initial_backoff=60, base=1)).run_action(call, "bad", "")
    except ValueError:
        return await ctx.wait_for(said)
    return ""


@app.workflow
async def tells(ctx: WorkflowCtx, password: str, text: str) -> None:
    if text.startswith("outer"):
        await ctx.run_workflow(tells, password, text.removeprefix("outer"))
        await ctx.run_action(call, text, password)


mended: list[str] = []


@app.workflow
async def fails(ctx: WorkflowCtx, who: str) -> None:
    await ctx.run_action(call, "good", "")
    await ctx.run_action(call, "good" if mended else "bad", "")


async def test_a_run_is_a_waterfall(database_url: str) -> None:
    async with TestApp(app, database_url, dev=True) as backend:
        run = await backend.scheduler.run_after(timedelta(0), flow, HOSTILE)
        await backend.run_until_idle(raise_errors=False)
        transport = httpx.ASGITransport(asgi_app(app, backend=backend, dashboard=True), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            listed = (await http.get("/dashboard/workflows", params={"state": "waiting"})).text
            assert f"/dashboard/workflows/{run}" in listed
            page = (await http.get(f"/dashboard/workflows/{run}")).text
            bars = re.findall(r'class="bar ?(\w*)".*?<rect x="([\d.]+)" width="([\d.]+)"', page)
            assert [kind for kind, _, _ in bars] == ["", "", "wait", "bad"]
            together, (_, left, width), (_, after, _) = bars[:2], bars[2], bars[3]
            assert [one[1] for one in together] == ["0.0", "0.0"]
            assert float(left) + float(width) <= float(after) + 1
            for text in (listed, page):
                assert HOSTILE not in text
                assert "hush-hush" not in text
            form = {"act": "send", "event": "said", "payload": '"well"'}
            answer = await http.post(f"/dashboard/workflows/{run}", data=form, headers={"origin": "http://localhost"})
            assert answer.status_code == 303
            await backend.run_until_idle(raise_errors=False)
            assert "well" in (await http.get(f"/dashboard/workflows/{run}")).text
            assert (await http.get(f"/dashboard/jobs/{run}")).text.count(f"/dashboard/workflows/{run}") == 1
            other = await backend.scheduler.run_after(timedelta(1), call, "good", "x")
            assert (await http.get(f"/dashboard/workflows/{other}")).status_code == 404


async def test_a_run_is_retried_and_forked_from_a_step(database_url: str) -> None:
    async with TestApp(app, database_url, dev=True) as backend:
        run = await backend.scheduler.run_after(timedelta(0), fails, "ada")
        await backend.run_until_idle(raise_errors=False)
        transport = httpx.ASGITransport(asgi_app(app, backend=backend, dashboard=True), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            place = f"/dashboard/workflows/{run}"

            async def act(**form: str) -> httpx.Response:
                return await http.post(place, data=form, headers={"origin": "http://localhost"})

            assert "Retry from the last failed step" in (await http.get(place)).text
            asked = (await act(act="retry")).text
            assert f"Go on with {run} from an earlier step?" in asked
            assert "2: action test_dashboard_workflows:call" in asked
            assert HOSTILE not in asked
            for wrong in ("99", "0", "x", ""):
                answer = await act(act="fork", step=wrong)
                assert answer.status_code >= 400 or "has no step" in answer.text, answer.text
            answer = await act(act="fork", step="2", sure="yes")
            assert answer.status_code == 303
            place, forked = answer.headers["location"], answer.headers["location"].rpartition("/")[2]
            assert forked != run
            assert run in (await http.get(place)).text, "it says from which run it was forked"
            await backend.run_until_idle(raise_errors=False)
            assert "Retry from the last failed step" in (await http.get(place)).text
            mended.append("ada")
            assert (await act(act="retry", sure="yes")).status_code == 303
            assert "Deleted records: 1." in (await http.get(place)).text
            await backend.run_until_idle()
            page = (await http.get(place)).text
            assert "Retry from the last failed step" not in page
            assert 'aria-label="Fork from a step"' in page
            assert 'aria-label="Retry from a step"' not in page
            mended.clear()


async def test_long_arguments_are_shown_as_far_as_they_are_kept(database_url: str) -> None:
    async with TestApp(app, database_url, dev=True) as backend:
        run = await backend.scheduler.run_after(timedelta(0), tells, "hush-hush", "outer" + HOSTILE * 200)
        await backend.run_until_idle()
        transport = httpx.ASGITransport(asgi_app(app, backend=backend, dashboard=True), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            page = (await http.get(f"/dashboard/workflows/{run}")).text
            assert "These are the first 2,000 characters; the run keeps no more." in page
            (link,) = re.findall(r'characters; <a href="([^"]+)">its job</a> has all', page)
            whole = (await http.get(link)).text
        assert whole.count("&lt;script") == 200
        assert 200 < page.count("&lt;script") < 400, "those of the run, and parts of two steps"
        for text in (page, whole):
            assert HOSTILE not in text
            assert "hush-hush" not in text
