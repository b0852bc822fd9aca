"""Access: a function lets in the callers whom its guard lets in, on every road that leads to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from stage.stories import tell_in
from stage.waits import SOON

from penstock import (
    AccessDenied,
    ActionCtx,
    App,
    ApplicationError,
    ConfigError,
    DeclarationError,
    Id,
    MutationCtx,
    NotSignedIn,
    QueryCtx,
    RateLimited,
    Table,
    TokenBucket,
    WorkId,
    WorkResult,
    owner_of,
    public,
    signed_in,
    sync,
)
from penstock.calls.call import PythonCall
from penstock.functions.function import FunctionKind
from penstock.identity.caller import Caller, RequestInfo
from penstock.identity.identity import Identity
from penstock.testing import TestApp

NOW = timedelta(0)
ADA: dict[str, Any] = {"subject": "ada"}
BOB: dict[str, Any] = {"subject": "bob"}


class Team(Table):
    owner: str
    founder: str
    is_open: bool = False


@dataclass
class Letter:
    team: str


async def is_open(ctx: QueryCtx, team: Id[Team]) -> bool:
    found = await ctx.db.get(Team, team)
    return found is not None and found.is_open


def is_bob(ctx: sync.QueryCtx) -> bool:
    identity = ctx.auth.get_user_identity()
    return identity is not None and identity.subject == "bob"


async def complain(ctx: QueryCtx, why: str = "") -> bool:
    raise ApplicationError(f"complaint {why}")


class Club:
    """Teams, and functions that guard them."""

    def __init__(self) -> None:
        self.app = app = App(tables=[Team])
        self.pool, self.ran = app.workpool("work"), list[str]()

        @app.query(access=owner_of(Team, "team", claim="subject"))
        async def owned(ctx: QueryCtx, team: Id[Team]) -> str:
            return self.run("owned")

        @app.query(access=is_bob | owner_of(Team, "team", field="founder") & is_open)
        def mixed(ctx: sync.QueryCtx, team: Id[Team]) -> str:
            return self.run("mixed")

        @app.query(access=public)
        def anyone(ctx: sync.QueryCtx, team: Id[Team]) -> str:
            return mixed(ctx, team)

        @app.query(access=complain & signed_in)
        async def complaining(ctx: QueryCtx, why: str = "of the function") -> None:
            self.run("complaining")

        @app.mutation(access=is_open)
        async def close(ctx: MutationCtx, team: Id[Team]) -> None:
            self.run("close")
            await ctx.db.patch(Team, team, is_open=False)

        @app.internal_mutation(access=signed_in)
        async def inner(ctx: MutationCtx) -> None:
            self.run("inner")

        @app.action(access=owner_of(Team, "team", field="founder"))
        async def act(ctx: ActionCtx, team: Id[Team]) -> str:
            return self.run("act")

        @app.action(batch=10, of=Letter, access=signed_in)
        async def letters(ctx: ActionCtx, items: list[Letter]) -> list[str]:
            return [self.run("letters") for _ in items]

        @app.internal_mutation
        async def found(ctx: MutationCtx, owner: str) -> Id[Team]:
            return await ctx.db.insert(Team(owner=owner, founder=f"test|{owner}", is_open=True))

        self.owned, self.mixed, self.anyone, self.complaining, self.close = owned, mixed, anyone, complaining, close
        self.inner, self.act, self.letters, self.found = inner, act, letters, found
        self.write, _, self.outer = tell_in(app)

    def run(self, name: str) -> str:
        self.ran.append(name)
        return name


async def test_a_guard_lets_in_whom_it_names_and_its_function_does_not_begin_for_others(database_url: str) -> None:
    club = Club()
    async with TestApp(club.app, database_url) as test:
        team = await test.run_mutation(club.found, "ada")
        ada, bob, nobody = (test.with_identity(**who) for who in (ADA, BOB, {}))
        for one in (test, ada):
            assert await one.run_query(club.owned, team) == "owned"
            assert await one.run_query(club.mixed, team) == "mixed"
            assert await one.run_query(club.anyone, team) == "mixed"
            assert await one.run_action(club.act, team) == "act"
        assert await bob.run_query(club.mixed, team) == await bob.run_query(club.anyone, team) == "mixed"
        assert await ada.run_action(club.letters, team=str(team)) == "letters"
        club.ran.clear()
        for one, refusal in ((bob, AccessDenied), (nobody, NotSignedIn)):
            with pytest.raises(refusal):
                await one.run_query(club.owned, team)
            with pytest.raises(refusal):
                await one.run_action(club.act, team)
        with pytest.raises(NotSignedIn):
            await nobody.run_query(club.anyone, team)
        with pytest.raises(NotSignedIn):
            await nobody.run_action(club.letters, team=str(team))
        with pytest.raises(ApplicationError, match="complaint of the function"):
            await bob.run_query(club.complaining)
        await nobody.run_mutation(club.close, team)
        with pytest.raises(NotSignedIn):
            await nobody.run_mutation(club.close, team)
        with pytest.raises(AccessDenied):
            await ada.run_query(club.mixed, team)
        assert club.ran == ["close"]


async def test_no_road_leads_round_a_guard(database_url: str) -> None:
    club = Club()
    async with TestApp(club.app, database_url) as test:
        team = await test.run_mutation(club.found, "ada")
        ada, bob, nobody = (test.with_identity(**who) for who in (ADA, BOB, {}))
        with pytest.raises(DeclarationError, match="signed_in, which asks who calls, and a job has no user"):
            await ada.run_mutation(club.write, lambda ctx: club.pool.enqueue(ctx, club.letters, team=team))
        inside: list[Callable[[Any], Any]] = [
            lambda ctx: club.owned(ctx, team=team),
            lambda ctx: ctx.run_query(club.owned, team),
            lambda ctx: ctx.run_mutation(club.inner),
        ]
        outside: list[Callable[[Any], Any]] = [
            lambda ctx: club.act(ctx, team),
            lambda ctx: ctx.run_action(club.act, team),
            lambda ctx: ctx.run_query(club.owned, team),
        ]
        for within, beyond in zip(inside, outside, strict=True):
            with pytest.raises(NotSignedIn):
                await nobody.run_mutation(club.write, within)
            with pytest.raises(AccessDenied):
                await bob.run_action(club.outer, beyond)
            assert club.ran == []
            await test.run_mutation(club.write, within)
            await test.run_action(club.outer, beyond)
            assert len(club.ran) == 2
            club.ran.clear()
        await test.run_mutation(club.close, team)
        club.ran.clear()
        await ada.run_mutation(club.write, lambda ctx: ctx.scheduler.run_after(NOW, club.close, team=team))
        await test.run_until_idle(raise_errors=False)
        (job,) = await test.jobs("failed")
        assert "NotSignedIn" in str(job.error)
        assert club.ran == []


async def test_a_live_query_ends_for_who_loses_access_and_concerns_no_other_caller(database_url: str) -> None:
    club = Club()
    async with TestApp(club.app, database_url) as test:
        team = await test.run_mutation(club.found, "ada")
        ada, bob = test.with_identity(**ADA), test.with_identity(**BOB)
        async with ada.live(club.mixed, team) as watch, bob.live(club.mixed, team) as other:
            assert await anext(watch) == await anext(other) == "mixed"
            await test.run_mutation(club.close, team)
            with pytest.raises(AccessDenied):
                await asyncio.wait_for(anext(watch), SOON)
            async with test.with_identity().live(club.mixed, team) as third:
                with pytest.raises(NotSignedIn):
                    await anext(third)
            assert len(test.live_queries.report()) == 3


def test_access_that_can_never_be_asked_is_refused_at_import() -> None:
    app: Any = App()
    guard: Any = signed_in

    async def one(ctx: QueryCtx, team: Id[Team]) -> None:
        """Take a team."""

    async def writes(ctx: MutationCtx) -> bool:
        return True

    def waits(ctx: QueryCtx) -> bool:
        return True

    for access, problem in (
        (signed_in & complain | owner_of(Team, "club"), r"access looks at club.* Its arguments are team\."),
        (True, r"access=True says nothing about callers"),
        (lambda: True, "the first parameter of a guard is its ctx"),
        (writes, r"writes \(.*test_access\.py:\d+\) is a guard .* takes a MutationCtx\. Write ctx: QueryCtx"),
        (signed_in | waits, r"waits \(.*test_access\.py:\d+\) is .*with def, .* Write ctx: sync\.QueryCtx"),
    ):
        with pytest.raises(DeclarationError, match=problem):
            app.query(access=access)(one)
    with pytest.raises(DeclarationError, match="no field 'captain'"):
        owner_of(Team, "team", field="captain")
    with pytest.raises(DeclarationError, match="no 'nick'"):
        owner_of(Team, "team", claim="nick")
    with pytest.raises(DeclarationError, match=r"with & and \|"):
        _ = guard and is_open  # which would be is_open alone
    with pytest.raises(DeclarationError, match=r"^@app\.query: there is no option acces\. There is access"):
        app.query(acces=signed_in)


async def test_a_program_may_require_that_each_public_function_says_who_has_access(tmp_path: Path) -> None:
    async def one(ctx: QueryCtx) -> None:
        """Say nothing."""

    async def login(ctx: MutationCtx) -> None:
        """Do nothing."""

    strict = App(require_access=True)
    strict.query(access=public)(one)
    strict.internal_query(is_open)
    with pytest.raises(DeclarationError, match=r"one \(.*test_access\.py:\d+\) is public, and does not say who may"):
        App(require_access=True).query(one)
    lax = App()
    lax.query(one)
    with pytest.raises(DeclarationError, match="is public, and does not say"):
        async with lax.open(f"sqlite:///{tmp_path}/lax.db", require_access=True):
            pass
    with pytest.raises(ConfigError):
        App(require_access="perhaps")
    limited = App()
    limited.mutation(rate_limit="logins")(login)
    with pytest.raises(DeclarationError, match="no rate limit 'logins'"):
        async with limited.open(f"sqlite:///{tmp_path}/limited.db"):
            pass


class Door:
    """A login form: four attempts, and one more each minute."""

    def __init__(self) -> None:
        self.app = app = App()
        app.rate_limit("login", TokenBucket(rate=1, period=timedelta(minutes=1), capacity=4))

        @app.mutation(access=public, rate_limit="login")
        async def login(ctx: MutationCtx, password: str) -> str:
            if password != "right":
                raise ApplicationError("wrong")
            return "welcome"

        @app.action(rate_limit="login")
        async def by_action(ctx: ActionCtx) -> str:
            return await ctx.run_mutation(login, "right")

        self.login, self.by_action = login, by_action


async def test_a_login_form_under_attack_lets_in_few_guesses_and_everybody_else(database_url: str) -> None:
    door = Door()
    async with TestApp(door.app, database_url) as test:

        async def guess(password: str, who: Identity | None = None) -> Any:
            caller = Caller(who, request=RequestInfo("10.0.0.1"))
            return await test.runner.run(PythonCall(door.login, ((password,), {}), caller), FunctionKind.MUTATION)

        outcomes = await asyncio.gather(*(guess("guess") for _ in range(20)), return_exceptions=True)
        refused = [one for one in outcomes if isinstance(one, RateLimited)]
        assert len(refused) == 16
        assert all(str(one) == "wrong" for one in outcomes if one not in refused)
        assert all(0 < one.retry_after <= 60 for one in refused)
        with pytest.raises(RateLimited):
            await guess("right")
        assert await guess("right", Identity(subject="ada", issuer="a" * 300)) == "welcome"
        for _ in range(6):
            assert await test.run_mutation(door.login, "right") == "welcome", "the program itself pays nothing"
        for _ in range(4):
            assert await test.with_identity(**BOB).run_action(door.by_action) == "welcome", "and pays once"
        with pytest.raises(RateLimited):
            await test.with_identity(**BOB).run_action(door.by_action)


def test_what_has_no_user_cannot_call_a_function_that_asks_for_one() -> None:
    """A cron, an on_complete and jobs: refused where they are declared, or at the call."""
    app = App()

    def asks(ctx: sync.QueryCtx) -> bool:
        return ctx.auth.get_user_identity() is not None

    async def ended(ctx: MutationCtx, work_id: WorkId, result: WorkResult[Any], context: Any) -> None: ...

    async def work(ctx: MutationCtx, team: Id[Team] | None = None) -> None: ...

    owner = owner_of(Team, "team", field="founder")
    refused: list[tuple[Any, bool, bool]] = [  # the access, whether a cron is refused, and jobs
        (owner, True, True),
        (owner | signed_in, True, True),
        (asks & signed_in, True, True),
        (asks | signed_in, True, False),
        (public | signed_in, False, False),
    ]
    for number, (access, by_cron, by_job) in enumerate(refused):
        work.__name__, ended.__name__ = f"work{number}", f"ended{number}"
        one, done = app.mutation(access=access)(work), app.mutation(access=signed_in if by_job else access)(ended)
        with pytest.raises(DeclarationError, match="has no user") if by_cron else nullcontext():
            app.crons.declare(f"cron{number}", "0 9 * * *", one)
        with pytest.raises(DeclarationError, match="has no user") if by_job else nullcontext():
            app.workpool(f"pool{number}").with_options(on_complete=done)
        with pytest.raises(DeclarationError, match="has no user") if by_job else nullcontext():
            one.check_job()
    work.__name__ = "inside"
    app.crons.declare("inside", "0 9 * * *", app.internal_mutation(access=signed_in)(work))
