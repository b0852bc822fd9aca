"""Workflows from outside: callers start runs, see theirs live, and send events; nobody sees the runs of others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest
from programs.identities import Provider, provider
from pydantic import BaseModel, SecretStr
from stage.sockets import listening, socket_client
from stage.waits import SOON, passing

from penstock import (
    OIDC,
    ActionCtx,
    App,
    ApplicationError,
    DeclarationError,
    Id,
    JobId,
    MutationCtx,
    QueryCtx,
    Table,
    WorkflowCtx,
    asgi_app,
    owner_of,
    public,
    signed_in,
)
from penstock.testing import TestApp, TestClock

pytestmark = pytest.mark.both_stores
NOW = timedelta(0)
HERE = __name__


class Team(Table):
    owner: str


class Card(BaseModel):
    token: str


class Trip(BaseModel):
    place: str
    days: int


class Journey(BaseModel):
    legs: list[Trip]
    card: SecretStr = SecretStr("4242")


class Refused(ApplicationError):
    """The trip cannot be made."""


async def is_boss(ctx: QueryCtx) -> bool:
    identity = await ctx.auth.get_user_identity()
    return identity is not None and identity.subject == "boss"


async def is_member(ctx: QueryCtx, team: str) -> bool:
    identity = await ctx.auth.require()
    return identity.subject in team.split()


def make_app(issuer: Provider) -> App:  # noqa: C901 - each is short
    app = App(tables=[Team], auth=[OIDC(issuer.url, "shop")], require_access=True)
    card_added = app.event("card_added", Card, access=signed_in)
    called_off = app.event("called_off", type(None), access=is_boss)
    app.event("hidden", str)

    @app.internal_action
    async def charge(ctx: ActionCtx, token: str) -> str:
        if token == "bad":
            raise Refused("The card is refused.")
        if token == "worse":
            raise ValueError("a secret")
        return f"paid with {token}"

    @app.workflow(access=signed_in | is_boss)
    async def trip(ctx: WorkflowCtx[Trip], place: str, days: int = 3) -> str:
        """Book a trip."""
        ctx.publish(Trip(place=place, days=days))
        event, payload = await ctx.wait_for(card_added, called_off)
        if event is called_off:
            return "called off"
        ctx.publish(Trip(place=place, days=0))
        return await ctx.run_action(charge, payload.token)

    @app.workflow(access=signed_in & is_member)
    async def shared(ctx: WorkflowCtx, team: str) -> None:
        await ctx.wait_for(card_added)

    @app.workflow(access=owner_of(Team, "team"))
    async def owned(ctx: WorkflowCtx, team: Id[Team]) -> None:
        await ctx.wait_for(card_added)

    @app.workflow(access=public)
    async def open_to_all(ctx: WorkflowCtx) -> list[int]:
        return [1, 2]

    @app.workflow
    async def inner(ctx: WorkflowCtx) -> None:
        await ctx.wait_for(card_added)

    @app.mutation(access=signed_in)
    async def begin(ctx: MutationCtx) -> list[JobId]:
        return [await ctx.scheduler.run_after(NOW, one, *args) for one, args in ((trip, ("Rome",)), (inner, ()))]

    @app.action(access=signed_in)
    async def begin_in_action(ctx: ActionCtx) -> JobId[str]:
        return await ctx.scheduler.run_after(NOW, trip, "Oslo")

    @app.internal_mutation
    async def begin_for_nobody(ctx: MutationCtx) -> JobId[str]:
        return await ctx.scheduler.run_after(NOW, trip, "Bonn")

    @app.internal_mutation
    async def found(ctx: MutationCtx, owner: str) -> Id[Team]:
        return await ctx.db.insert(Team(owner=owner))

    return app


@dataclass
class Desk:
    """A server, and those who call it."""

    test: TestApp
    http: httpx.AsyncClient
    issuer: Provider
    url: str

    def headers(self, who: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.issuer.token(who)}"} if who else {}

    async def call(self, who: str, kind: str, path: str, /, **args: Any) -> Any:
        body = {
            "path": path if path.startswith("events:") else HERE + ":" * (path[0] != ".") + path,
            "args": args,
            "format": "json",
        }
        answer = (await self.http.post(f"/api/{kind}", json=body, headers=self.headers(who))).json()
        return answer.get("value") if answer["status"] == "success" else answer.get("errorData", answer["errorMessage"])

    async def start(self, who: str, flow: str, /, **args: Any) -> Any:
        return await self.call(who, "mutation", f".{flow}:start", **args)

    async def see(self, who: str, flow: str, run: Any) -> Any:
        return await self.call(who, "query", f".{flow}:status", run=run)

    async def send(self, who: str, event: str, run: Any, **more: Any) -> Any:
        return await self.call(who, "mutation", f"events:{event}", run=run, **more)

    async def run(self, name: str, *args: Any) -> Any:
        """Run a mutation of the program itself."""
        function: Any = self.test.app.registry.find(f"{HERE}:{name}")
        return await self.test.run_mutation(function, *args)

    async def settle(self) -> None:
        await self.test.run_until_idle(advance=False, raise_errors=False)


@asynccontextmanager
async def opened(database: str) -> AsyncIterator[Desk]:
    clock = TestClock()
    with provider(clock) as issuer:
        app = make_app(issuer)
        async with (
            TestApp(app, database, clock=clock) as test,
            listening(asgi_app(app, backend=test)) as url,
            httpx.AsyncClient(base_url=url, timeout=SOON) as http,
        ):
            yield Desk(test, http, issuer, url)


def code_of(answer: Any) -> Any:
    return answer["code"] if isinstance(answer, dict) and "code" in answer else answer


async def test_a_caller_starts_a_run_sees_it_and_sends_it_an_event(database_url: str) -> None:
    async with opened(database_url) as desk:
        run = await desk.start("ada", "trip", place="Rome")
        assert await desk.see("ada", "trip", run) == {
            "state": "pending",
            "published": None,
            "result": None,
            "error": None,
        }
        await desk.settle()
        shown = {"state": "waiting", "published": {"place": "Rome", "days": 3}, "result": None, "error": None}
        assert await desk.see("ada", "trip", run) == shown
        assert await desk.send("ada", "card_added", run, payload={"token": "tok"}) is True
        await desk.settle()
        ended = {
            "state": "success",
            "published": {"place": "Rome", "days": 0},
            "result": "paid with tok",
            "error": None,
        }
        assert await desk.see("ada", "trip", run) == ended
        assert await desk.send("ada", "card_added", run, payload={"token": "tok"}) is False


async def test_nobody_sees_or_reaches_the_runs_of_others(database_url: str) -> None:
    """(WF158)"""
    async with opened(database_url) as desk:
        assert code_of(await desk.start("", "trip", place="Rome")) == "NotSignedIn"
        run = await desk.start("ada", "trip", place="Rome")
        started, inner = await desk.call("ada", "mutation", "begin")
        acted = await desk.call("ada", "action", "begin_in_action")
        unowned = await desk.run("begin_for_nobody")
        await desk.settle()
        unknown = run[:-1] + ("0" if run[-1] != "0" else "1")
        for one in (run, started, acted):
            assert (await desk.see("ada", "trip", one))["state"] == "waiting"
            assert (await desk.see("boss", "trip", one))["state"] == "waiting", "a guard of the access lets it in"
            for who in ("bob", ""):
                assert await desk.see(who, "trip", one) is None
            assert await desk.see("ada", "shared", one) is None, "a run of another workflow"
            assert await desk.send("bob", "card_added", one, payload={"token": "tok"}) is False
        for hidden in (unowned, unknown, inner):
            assert await desk.see("ada", "trip", hidden) is None
            assert await desk.send("ada", "card_added", hidden, payload={"token": "tok"}) is False
        assert (await desk.see("boss", "trip", unowned))["state"] == "waiting"
        assert code_of(await desk.send("", "card_added", run, payload={"token": "tok"})) == "NotSignedIn"
        assert code_of(await desk.send("ada", "called_off", run)) == "AccessDenied"
        assert "Could not find public function" in await desk.send("ada", "hidden", run, payload="x")
        assert "Could not find public function" in await desk.call("ada", "mutation", ".inner:start")
        await desk.settle()
        assert [(await desk.see("boss", "trip", one))["state"] for one in (run, started, acted, unowned)] == [
            "waiting"
        ] * 4
        assert await desk.send("boss", "called_off", run) is True
        await desk.settle()
        assert (await desk.see("ada", "trip", run))["result"] == "called off"


async def test_a_guard_is_asked_with_the_arguments_of_the_run(database_url: str) -> None:
    async with opened(database_url) as desk:
        assert code_of(await desk.start("eve", "shared", team="ada bob")) == "AccessDenied"
        run = await desk.start("ada", "shared", team="ada bob")
        assert [await desk.see(who, "shared", run) is not None for who in ("ada", "bob", "eve", "")] == [
            True,
            True,
            False,
            False,
        ]
        team = await desk.run("found", f"{desk.issuer.url}|ada")
        assert code_of(await desk.start("bob", "owned", team=team)) == "AccessDenied"
        run = await desk.start("ada", "owned", team=team)
        assert [await desk.see(who, "owned", run) is not None for who in ("ada", "bob")] == [True, False]


async def test_whoever_has_its_id_sees_a_run_that_nobody_known_started(database_url: str) -> None:
    async with opened(database_url) as desk:
        run, own = [await desk.start(who, "open_to_all") for who in ("", "ada")]
        await desk.settle()
        for who in ("", "ada", "bob"):
            assert (await desk.see(who, "open_to_all", run))["result"] == [1, 2]
        assert [await desk.see(who, "open_to_all", own) is not None for who in ("", "ada", "bob")] == [
            False,
            True,
            False,
        ]


async def test_callers_learn_the_errors_that_are_meant_for_them(database_url: str) -> None:
    async with opened(database_url) as desk:
        runs = [await desk.start("ada", "trip", place="Rome") for _ in range(3)]
        for run, token in zip(runs, ("bad", "worse"), strict=False):
            assert await desk.send("ada", "card_added", run, payload={"token": token}) is True
        await desk.test.scheduler.cancel(runs[2])
        await desk.settle()
        seen = [await desk.see("ada", "trip", run) for run in runs]
        assert [(one["state"], one["error"], one["result"]) for one in seen] == [
            ("failed", "The card is refused.", None),
            ("failed", None, None),
            ("canceled", None, None),
        ]
        for wrong in ("nothing", "job_", None, [runs[0]]):
            assert "ArgumentValidationError" in await desk.see("ada", "trip", wrong)
        assert "ArgumentValidationError" in await desk.send("ada", "card_added", runs[0], payload={"token": 1})
        assert "ArgumentValidationError" in await desk.start("ada", "trip", place=1)
        for key in ("", "k" * 201, "\0", 1):
            sent = await desk.send("ada", "card_added", runs[0], payload={"token": "tok"}, key=key)
            assert "ArgumentValidationError" in sent, key


async def test_a_browser_sees_a_run_move(database_url: str) -> None:
    """(WF9, WF151)"""
    async with (
        opened(database_url) as desk,
        socket_client(desk.url, f"{HERE}.trip") as client,
        passing(desk.test.clock),
    ):
        await client.connect()
        token = desk.issuer.token("ada")
        await client.send({"type": "Authenticate", "baseVersion": 0, "tokenType": "User", "value": token})
        await client.call("Mutation", "start", place="Rome")
        while (answer := await client.receive())["type"] != "MutationResponse":
            pass
        await client.watch(0, "status", run=answer["result"])
        empty = {"published": None, "result": None, "error": None}
        await client.until(0, {**empty, "state": "pending"})
        await desk.settle()
        await client.until(0, {**empty, "state": "waiting", "published": {"place": "Rome", "days": 3}})
        assert await desk.send("ada", "card_added", answer["result"], payload={"token": "tok"}) is True
        await desk.settle()
        published = {"place": "Rome", "days": 0}
        await client.until(0, {**empty, "state": "success", "published": published, "result": "paid with tok"})


async def test_rest_has_them_at_their_paths(database_url: str) -> None:
    async with opened(database_url) as desk:
        headers, base = desk.headers("ada"), f"/rest/{HERE.replace('.', '/')}/trip"
        run = (await desk.http.post(f"{base}/start", json={"place": "Rome"}, headers=headers)).json()
        await desk.settle()
        answer = await desk.http.get(f"{base}/status", params={"run": run}, headers=headers)
        assert (answer.status_code, answer.json()["state"]) == (200, "waiting")
        body = {"run": run, "payload": {"token": "tok"}, "key": "once"}
        sent = [(await desk.http.post("/rest/events/card_added", json=body, headers=headers)).json() for _ in range(2)]
        assert sent == [True, True], "the second one has the key of the first, and changes nothing"
        assert (await desk.http.post(f"{base}/start", json={"place": "Rome"})).status_code == 401


def test_wrong_declarations_are_refused() -> None:
    app = App()

    async def flow(ctx: WorkflowCtx, name: str) -> None: ...
    async def bare(ctx: WorkflowCtx, name) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    async def of_team(ctx: QueryCtx, team: str) -> bool:
        return True

    with pytest.raises(DeclarationError, match="access looks at team"):
        app.workflow(access=of_team)(flow)
    with pytest.raises(DeclarationError, match="lacks an annotation of name"):
        App().workflow(access=public)(bare)
    with pytest.raises(DeclarationError, match="says nothing about callers"):
        App().workflow(access="public")(flow)  # type: ignore[call-overload]
    with pytest.raises(DeclarationError, match="underscores"):
        App().event("card-added", str, access=public)


def release(kind: Any, state: Any) -> tuple[App, Any]:
    """A program whose workflow publishes a state, of a type that it says."""
    app = App()

    async def tour(ctx: Any) -> None:
        ctx.publish(state)
        await ctx.sleep(timedelta(days=1))

    tour.__annotations__["ctx"] = WorkflowCtx[kind]
    return app, app.workflow(name="tours:tour", access=public)(tour)


async def test_a_state_has_the_type_that_its_workflow_says(database_url: str) -> None:
    """Secrets in it are masked; one that an older release has published, of another type, is not shown."""
    (old, tour), (new, _) = release(Trip, Trip(place="Rome", days=3)), release(Journey, Trip(place="Rome", days=3))
    async with TestApp(old, database_url) as before, TestApp(new, database_url, clock=before.clock) as after:
        run = await before.scheduler.run_after(NOW, tour)
        await before.run_until_idle(advance=False)
        for backend, published in ((before, Trip(place="Rome", days=3)), (after, None)):
            status: Any = backend.app.registry.find("tours.tour:status")
            assert (await backend.run_query(status, run)).published == published
        wrong: JobId = await after.scheduler.run_after(NOW, after.app.registry.find("tours:tour"))  # type: ignore[arg-type]
        await after.run_until_idle(advance=False, raise_errors=False)
        assert "A published state" in str((await after.job(wrong)).error)  # type: ignore[union-attr]
    newest, tour = release(Journey, Journey(legs=[Trip(place="Rome", days=3)]))
    async with TestApp(newest, database_url) as backend:
        run = await backend.scheduler.run_after(NOW, tour)
        await backend.run_until_idle(advance=False)
        status = newest.registry.find("tours.tour:status")
        (shown, seen) = (await backend.run_query(status, run)).published, (await backend.job(run)).published  # type: ignore[union-attr]
        assert shown.legs == [Trip(place="Rome", days=3)]
        assert "4242" not in str(seen) + str(shown.card.get_secret_value())
