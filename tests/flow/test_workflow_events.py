"""Events for runs of workflows: by token, from plain SQL, to many runs; what is refused, and what is not received."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx
import psycopg
import pytest
from pydantic import BaseModel
from stage.guests import sqlite_file

from penstock import (
    App,
    DataError,
    JobId,
    LimitExceeded,
    MutationCtx,
    TokenExpired,
    TokenInvalid,
    ValueInvalid,
    asgi_app,
)
from penstock.calls.workflows import events
from penstock.calls.workflows.context import WorkflowCtx
from penstock.errors import EventTimeout
from penstock.jobs.job import job_uuid
from penstock.testing import TestApp

pytestmark = pytest.mark.both_stores

NOW, DAY = timedelta(0), timedelta(days=1)
app = App()


class Answer(BaseModel):
    yes: bool


answered = app.event("answered", Answer)
noted = app.event("noted", str)
tokens: list[str] = []


@app.workflow
async def ask(ctx: WorkflowCtx, times: int) -> list[Any]:
    tokens[:] = [ctx.event_token(answered, DAY), ctx.event_token(answered, DAY), ctx.event_token(noted, DAY)]
    found: list[Any] = []
    for _ in range(times):
        try:
            found.append((await ctx.wait_for(answered, timeout=3 * DAY)).yes)
        except EventTimeout:
            found.append("late")
    return found


async def begin(backend: TestApp, times: int) -> JobId:
    run = await backend.scheduler.run_after(NOW, ask, times)
    await backend.run_until_idle(advance=False)
    return run


async def result(backend: TestApp, run: JobId) -> Any:
    await backend.run_until_idle(advance=False)
    status = await backend.job(run)
    assert status is not None
    return status.result


async def test_a_token_sends_one_event_to_its_run(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        other, run = await begin(backend, 1), await begin(backend, 2)
        first, second, of_noted = tokens
        assert await answered.redeem(backend, first, Answer(yes=True))
        assert not await answered.redeem(backend, first, Answer(yes=False)), "it counts once"
        await backend.run_until_idle(advance=False)
        assert tokens == [first, second, of_noted], "a replay gives the same ones"
        parts = second.split("~")
        forged = [
            "~".join([other, *parts[1:]]),
            "~".join([*parts[:2], "7", *parts[3:]]),
            "~".join([*parts[:3], str(int(parts[3]) + 1), parts[4]]),
            "~".join([*parts[:4], "0" * 64]),
            "~".join(["job_nobody", *parts[1:]]),
            "no token",
            of_noted,
        ]
        for token in forged:
            with pytest.raises(TokenInvalid):
                await answered.redeem(backend, token, Answer(yes=False))
        with pytest.raises(ValueInvalid):
            await answered.redeem(backend, second, "yes")  # type: ignore[call-overload]
        assert await answered.redeem(backend, second, Answer(yes=False))
        assert await result(backend, run) == [True, False]
        assert await result(backend, other) is None
        with pytest.raises(TokenExpired, match="has ended"):
            await noted.redeem(backend, of_noted, "late")
        await begin(backend, 1)
        backend.clock.advance(DAY + timedelta(seconds=1))
        with pytest.raises(TokenExpired, match="time is over"):
            await answered.redeem(backend, tokens[0], Answer(yes=True))


async def test_a_token_is_taken_over_http(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        run = await begin(backend, 1)
        first, second, _ = tokens
        transport = httpx.ASGITransport(asgi_app(app, backend=backend))
        async with httpx.AsyncClient(base_url="http://shop", transport=transport) as http:
            refusals = [
                (first, {"payload": {"yes": "maybe"}}, 400, "EventInvalid"),
                (first, {"yes": True}, 400, "BadRequest"),
                (first + "0", {"payload": {"yes": True}}, 404, "TokenInvalid"),
                ("x", {"payload": {"yes": True}}, 404, "TokenInvalid"),
            ]
            for token, body, status, code in refusals:
                response = await http.post(f"/api/event/{token}", json=body)
                assert (response.status_code, response.json()["code"]) == (status, code), response.text
            for accepted in (True, False):
                response = await http.post(f"/api/event/{first}", json={"payload": {"yes": True}})
                assert response.json() == {"accepted": accepted}
            assert await result(backend, run) == [True]
            response = await http.post(f"/api/event/{second}", json={"payload": {"yes": True}})
            assert (response.status_code, response.json()["code"]) == (410, "TokenExpired")


# ----- plain SQL


def send(url: str, *values: Any) -> None:
    """Send an event as another program does: its run, event, payload and key."""
    marks = ", ".join("?" * len(values))
    if url.startswith("sqlite"):
        lite = sqlite3.connect(sqlite_file(url))
        with lite:
            lite.execute(f"insert into penstock_send_event (run, event, payload, key) values ({marks})", values)
        lite.close()
        return
    with psycopg.connect(url) as connection:
        connection.execute("select penstock.send_event(%s, %s, %s::jsonb, %s)", values)


REFUSED = sqlite3.IntegrityError, psycopg.errors.InvalidParameterValue


async def test_plain_sql_sends_events(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        other, run = await begin(backend, 1), await begin(backend, 2)
        send(database_url, run, "answered", '{"yes": "maybe"}', None)  # the run waits on
        send(database_url, run, "answered", '{"yes": true}', "k")
        send(database_url, run, "answered", '{"yes": true}', "k")
        await backend.run_until_idle(advance=False)
        assert await result(backend, run) is None
        send(database_url, run, "answered", '{"yes": false}', None)
        assert await result(backend, run) == [True, False]
        assert await result(backend, other) is None
        wrong: list[tuple[Any, ...]] = [
            (run, "answered", '{"yes": true}', None),  # it has ended
            (f"{run[:-1]}x", "answered", "{}", None),
            ("job_0", "answered", "{}", None),
            (f"key_{other[4:]}", "answered", "{}", None),
            (None, "answered", "{}", None),
            (other, "", "{}", None),
            (other, "no name", "{}", None),
            (other, None, "{}", None),
            (other, "answered", None, None),
            (other, "answered", "{}", ""),
            (other, "answered", "{}", "k" * 201),
        ]
        for values in wrong:
            with pytest.raises(REFUSED, match="penstock: "):
                send(database_url, *values)


# ----- many runs, and many events


@app.internal_mutation
async def tell_all(ctx: MutationCtx, runs: list[JobId], *, fails: bool = False) -> list[JobId]:
    new = await ctx.scheduler.run_after(NOW, ask, 1)
    reached = await answered.broadcast(ctx, [*runs, new, new], Answer(yes=True), key="all")
    if fails:
        raise ValueError("rolled back")
    return reached


async def test_a_broadcast_reaches_all_runs_that_have_not_ended(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        over, *runs = [await begin(backend, number) for number in (0, 1, 1, 2)]
        with pytest.raises(ValueError, match="rolled back"):
            await backend.run_mutation(tell_all, [over, *runs], fails=True)
        reached = await backend.run_mutation(tell_all, [over, *runs])
        assert reached[:-1] == runs
        assert await answered.broadcast(backend, runs, Answer(yes=False), key="all") == runs, "the key is known"
        assert [await result(backend, run) for run in reached] == [[True], [True], None, [True]]


async def test_a_run_has_so_many_unread_events_at_most(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_UNREAD", 3)
    async with TestApp(app, database_url) as backend:
        run = await begin(backend, 1)
        for number in range(3):
            await noted.send(backend, run, f"{number}")
        with pytest.raises(LimitExceeded, match="3 events that it has not received"):
            await answered.send(backend, run, Answer(yes=True))
        with pytest.raises(DataError, match="has ended"):
            await noted.send(backend, JobId(f"{run[:-2]}00"), "to nobody")


async def test_events_of_runs_that_never_began_are_deleted(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        run = await backend.scheduler.run_after(DAY, ask, 1)
        await noted.send(backend, run, "before it began")
        assert await backend.engine.store.workflows.prune(backend.clock.now(), 10) == 0
        await backend.scheduler.cancel(run)
        await backend.run_until_idle()
        pruner = backend.make_service("pruner")
        for _ in range(10):
            backend.clock.advance(DAY)
            await pruner.tick()
        assert await backend.engine.store.workflows.read_inbox(job_uuid(run)) == []


# ----- addressed by workflow and key


first, second = app.workpool("first"), app.workpool("second")


@app.internal_mutation
async def begin_and_tell(ctx: MutationCtx, key: str, yes: list[bool]) -> JobId:
    run = await first.with_options(key=key, on_duplicate="return").enqueue(ctx, ask, len(yes))
    for number, one in enumerate(yes):
        await answered.send(ctx, run if number else (ask, key), Answer(yes=one))
    return run


@app.internal_mutation
async def tell_key(ctx: MutationCtx, key: str, *, fails: bool = False) -> None:
    await answered.send(ctx, (ask, key), Answer(yes=True), key="once")
    if fails:
        raise ValueError(key)


@app.internal_mutation
async def begin_in_vain(ctx: MutationCtx) -> None:
    with suppress(ValueError):
        await ctx.run_mutation(begin_and_fail)
    await answered.send(ctx, (ask, "vain"), Answer(yes=True))


@app.internal_mutation
async def begin_and_fail(ctx: MutationCtx) -> None:
    await first.with_options(key="vain").enqueue(ctx, ask, 1)
    raise ValueError("undone")


async def test_an_event_is_addressed_by_workflow_and_key(database_url: str) -> None:
    """(WF72)"""
    async with TestApp(app, database_url) as backend:
        run = await first.with_options(key="ada").enqueue(backend, ask, 2)
        other = await first.with_options(key="bob").enqueue(backend, ask, 1)
        with pytest.raises(ValueError, match="ada"):
            await backend.run_mutation(tell_key, "ada", fails=True)
        for _ in range(2):
            await backend.run_mutation(tell_key, "ada")  # before it waits; the second one has the key of the first
        await backend.run_until_idle(advance=False)
        await answered.send(backend, (ask, "ada"), Answer(yes=False))
        assert await result(backend, run) == [True, False]
        status = await backend.job(other)
        assert status is not None
        assert status.result is None
        for key in ("ada", "eve", ""):
            with pytest.raises(DataError, match="there is none, or it has ended"):
                await backend.run_mutation(tell_key, key)
        again = await first.with_options(key="ada").enqueue(backend, ask, 1)
        await backend.run_mutation(tell_key, "ada")
        assert await result(backend, again) == [True], "a new run with the key of an old one"
        await second.with_options(key="bob").enqueue(backend, ask, 1)
        with pytest.raises(DataError, match="Several runs"):
            await backend.run_mutation(tell_key, "bob")
        for wrong in ((ask, 1), (ask,), ("ask", "bob"), (tell_all, "bob"), (ask, "\0")):
            with pytest.raises(ValueInvalid, match="no address"):
                await answered.send(backend, wrong, Answer(yes=True))  # type: ignore[arg-type]


async def test_a_mutation_begins_a_run_with_a_key_and_sends_it_events_at_once(database_url: str) -> None:
    async with TestApp(app, database_url) as backend:
        run = await backend.run_mutation(begin_and_tell, "ada", [True, False])
        assert await backend.run_mutation(begin_and_tell, "ada", [False]) == run, "the key has that run already"
        assert await result(backend, run) == [True, False]
        with pytest.raises(DataError, match="there is none"):
            await backend.run_mutation(begin_in_vain)
