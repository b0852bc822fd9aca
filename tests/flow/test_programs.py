"""Several programs on one database: what they declare, who is refused and warned, whose crons fire and whose jobs run.

Programs with random declarations open, close, die, and declare otherwise, in random order; a model says what must be.
"""

from __future__ import annotations

import random  # noqa: TID251 - a seed chooses what is tried
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from types import FunctionType
from typing import Any, Literal

import pytest
from stage.needs import examples
from stage.waits import events

from penstock import ActionCtx, App, JobId, MutationCtx, Retry, TokenBucket, WorkResult
from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import DeclarationError, ProgramClash, UsageError
from penstock.store.open import make_store
from penstock.store.session import Statement, reading
from penstock.testing import TestApp, TestClock

POOLS, CRONS, LIMITS, OUTBOXES = ("mail", "video"), ("nightly", "hourly"), ("calls",), ("news",)
NOW, SECOND, MINUTE, DAY = timedelta(0), timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
NOUNS, SOON = {"pool", "cron", "rate limit", "outbox"}, Retry(max_attempts=9, initial_backoff=0.1)
DECLARED = ("pool", "cron", "declaration", "function", "task", "outbox", "gate")
Thing = tuple[str, str]  # noun and name


async def stored(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """All that is stored of declarations."""
    store = make_store(Config(database=url), SystemClock())
    await store.open(look=True)
    try:
        async with reading(store.begin_read) as session:
            text = f"select * from penstock{'.' if store.dialect.schemas else '_'}{{}} order by 1, 2"
            return {one: [tuple(row) for row in await session.fetch(Statement(text.format(one)))] for one in DECLARED}
    finally:
        await store.close()


@dataclass(frozen=True)
class Job:
    """A job that must run once: in a process of its program that has the function and the pool."""

    program: str
    function: str
    pool: str | None
    said: Any
    on_complete: str | Literal[False] = False


class Release:
    """A release of a program, with random declarations, which runs in a process of its own for the database."""

    def __init__(self, chance: random.Random, url: str, clock: TestClock, ran: list[tuple[str, Any]]) -> None:
        self.program = program = chance.choice(["shop", "shop", "erp", "erp", "crm", ""])
        # Two programs may both have a module called app; of those without a name nobody could tell.
        self.module = chance.choice([program, "app"] if program else ["plain", "bare"])
        self.app = app = App(name=program)
        self.specs: dict[Thing, Any] = {}
        self.pools = {}
        for name in chance.sample(POOLS, chance.randint(0, 2)):
            limit = self.specs["pool", name] = chance.choice([3, 3, 3, 7])
            of_key = 1 if name == "video" else None
            self.pools[name] = app.workpool(name, max_parallelism=limit, key_parallelism=of_key)
        for name in LIMITS:
            if chance.random() < 0.3:
                rate = self.specs["rate limit", name] = chance.choice([5, 5, 9])
                app.rate_limit(name, TokenBucket(rate=rate, period=MINUTE))

        self.functions: dict[str, Any] = {}
        self._declare_functions(chance, ran)
        for name in OUTBOXES:
            if chance.random() < 0.2:
                self.specs["outbox", name] = f"{self.module}:{name}"
                app.outbox("news", name=name)(self._named(name, self._hear))
        for name in CRONS:
            if chance.random() < 0.25:
                self.specs["cron", name] = f"{self.module}:{name}"
                self.functions[f"{self.module}:{name}"] = app.cron("0 0 * * *", name=name)(
                    self._named(name, self._fires(name, ran))
                )
        self.test = TestApp(app, url, clock=clock)

    def _declare_functions(self, chance: random.Random, ran: list[tuple[str, Any]]) -> None:
        program, app = self.program, self.app

        async def mutate(ctx: MutationCtx, said: int) -> None:
            ran.append((program, said))

        async def act(ctx: ActionCtx, said: int) -> None:
            ran.append((program, said))

        async def complete(ctx: MutationCtx, work_id: JobId, result: WorkResult[None], context: int) -> None:
            ran.append((program, f"on_complete of {context}"))
            if ran.count(ran[-1]) == 1:
                raise ValueError("The first call of each fails, so that any worker might make the next one.")

        for word, handler in (("mutate", mutate), ("act", act), ("complete", complete)):
            if chance.random() < 0.8:
                handler.__module__, handler.__qualname__ = self.module, word
                decorate: Any = app.internal_action if word == "act" else app.internal_mutation
                self.functions[f"{self.module}:{word}"] = decorate(handler)

    def _fires(self, name: str, ran: list[tuple[str, Any]]) -> Any:
        program = self.program

        async def fire(ctx: MutationCtx) -> None:
            ran.append((program, name))

        return fire

    @staticmethod
    async def _hear(ctx: ActionCtx, payload: str) -> None: ...

    def _named(self, name: str, handler: Any) -> Any:
        named = FunctionType(handler.__code__, handler.__globals__, name, closure=handler.__closure__)
        named.__annotations__, named.__module__, named.__qualname__ = handler.__annotations__, self.module, name
        return named

    def runs(self, job: Job) -> bool:
        return (
            job.program == self.program
            and job.function in self.functions
            and (job.pool is None or job.pool in self.pools)
        )


class World:
    """The programs on one database, and the model of what must be there."""

    def __init__(self, url: str, seed: int, caplog: pytest.LogCaptureFixture) -> None:
        self.chance, self.url, self.caplog, self.clock = random.Random(seed), url, caplog, TestClock(seed=seed)
        self.running: list[Release] = []
        self.ran: list[tuple[str, Any]] = []
        self.rows: dict[Thing, dict[str, Any]] = {}  # what each program declares
        self.holds: dict[Thing, Any] = {}  # of a pool its limit, of a cron its function
        self.jobs: list[Job] = []  # those that have not run
        self.done = Counter[tuple[str, Any]]()
        self.number = 0

    async def step(self) -> None:
        acts = [self.open, self.open, self.enqueue, self.enqueue, self.enqueue, self.end, self.kill, self.work]
        await self.chance.choice([*acts, self.midnight])()

    # ----- acts

    async def open(self) -> None:
        new = Release(self.chance, self.url, self.clock, self.ran)
        met = [
            (thing, spec, other, known)
            for thing, spec in new.specs.items()
            for other, known in self.rows.get(thing, {}).items()
        ]
        clashes = sorted(
            (*thing, other)
            for thing, spec, other, known in met
            if new.program and other and new.program != other and (thing[0] in {"cron", "outbox"} or known != spec)
        )
        warned = sorted(
            (*thing, other) for thing, spec, other, known in met if not (new.program and other) and known != spec
        )
        self.caplog.clear()
        if clashes:
            before = await stored(self.url)
            with pytest.raises(ProgramClash) as refused:
                await new.test.__aenter__()
            said, told = refused.value.facts["clashes"], str(refused.value)
            assert sorted((one["noun"], one["name"], one["program"]) for one in said) == clashes
            assert all(word in told for clash in clashes for word in (clash[0], *map(repr, (*clash[1:], new.program))))
            assert await stored(self.url) == before, "a program that is refused leaves nothing"
            return
        await new.test.__aenter__()
        found = events(self.caplog, "program.clash")
        assert sorted((one["noun"], one["name"], one["other"] or "") for one in found) == warned
        self.running.append(new)
        for thing, spec in new.specs.items():
            known = self.rows.setdefault(thing, {})
            known[new.program] = self.holds[thing] = spec
            if new.program:
                known.pop("", None)
        await self.check()

    async def end(self) -> None:
        if self.running:
            await self.running.pop(self.chance.randrange(len(self.running))).test.__aexit__(None, None, None)

    async def kill(self) -> None:
        if self.running:
            await self.running.pop(self.chance.randrange(len(self.running))).test.kill()
            self.clock.advance(timedelta(seconds=40))  # its lease ends, with the slots that it holds

    async def enqueue(self) -> None:
        able = [one for one in self.running if any(":mutate" in name or ":act" in name for name in one.functions)]
        if not able:
            return
        one = self.chance.choice(able)
        for _ in range(self.chance.randint(1, 4)):
            function = self.chance.choice([name for name in one.functions if name.endswith((":mutate", ":act"))])
            pool = self.chance.choice([None, *one.pools])
            completes = f"{one.module}:complete" if pool and self.chance.random() < 0.5 else ""
            self.number += 1
            if pool is None:
                await one.test.scheduler.run_after(NOW, one.functions[function], said=self.number)
            else:
                key = self.chance.choice([None, "a", "b"]) if pool == "video" else None
                asked = one.pools[pool].with_options(concurrency_key=key)
                if completes in one.functions:
                    told = {"on_complete": one.functions[completes], "context": self.number, "on_complete_retry": SOON}
                    asked = asked.with_options(**told)
                await asked.enqueue(one.test, one.functions[function], said=self.number)
            self.jobs.append(Job(one.program, function, pool, self.number, completes in one.functions and completes))

    async def work(self) -> None:
        while able := [job for job in self.jobs if any(one.runs(job) for one in self.running)]:
            self.jobs = [job for job in self.jobs if job not in able]
            for job in able:
                self.done[job.program, job.said] += 1 + str(job.said).startswith("on_complete")
                if job.on_complete:
                    self.jobs.append(Job(job.program, job.on_complete, None, f"on_complete of {job.said}"))
        for turn in range(9):  # a job or a slot that one has handed back is another's, and calls are made again
            for one in self.chance.sample(self.running, len(self.running)):
                await one.test.run_until_idle(advance=False)
            self.clock.advance(SECOND)
            if turn and Counter(self.ran) == self.done:
                break
        assert Counter(self.ran) == self.done

    async def midnight(self) -> None:
        """Each cron that a running program declares fires once, unless its last run is still to be done."""
        await self.work()
        self.clock.advance(DAY)
        for one in self.running:
            while await one.test.cron_scheduler.tick() == 0:
                pass
        for name in CRONS:
            keeps = any(("cron", name) in one.specs for one in self.running)
            if keeps and not any(job.said == name for job in self.jobs):
                function = self.holds["cron", name]
                program = next(who for who, known in self.rows["cron", name].items() if known == function)
                self.jobs.append(Job(program, function, None, name))
        await self.work()

    # ----- what must be

    async def check(self) -> None:
        """Nothing disappears, and only a program that declares a thing changes it."""
        now = await stored(self.url)
        rows = {tuple(row[:3]) for row in now["declaration"] if row[0] in NOUNS}
        assert rows == {(*thing, program) for thing, programs in self.rows.items() for program in programs}
        held = {("pool", row[0]): row[1] for row in now["pool"]} | {("cron", row[0]): row[5] for row in now["cron"]}
        held |= {("outbox", row[1]): row[2] for row in now["outbox"]}
        assert held == {thing: spec for thing, spec in self.holds.items() if thing[0] != "rate limit"}

    async def finish(self) -> None:
        await self.work()
        for one in self.running:
            for job in await one.test.jobs("success", 1000):
                assert job.attempt == 1, job
            await one.test.__aexit__(None, None, None)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(examples(60)))
async def test_programs_share_a_database_or_are_refused(
    database_url: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(database_url, seed, caplog)
    for _ in range(40):
        await world.step()
    await world.finish()


async def test_what_another_program_declares_is_not_removed_or_called_lost(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, shop, erp = TestClock(), App(name="shop"), App(name="erp")

    @erp.outbox("news", name="paper")
    async def paper(ctx: ActionCtx, payload: str) -> None: ...

    @erp.cron("0 0 * * *", name="nightly")
    async def nightly(ctx: MutationCtx) -> None: ...

    @erp.internal_mutation
    async def created(ctx: MutationCtx) -> None: ...

    async with TestApp(erp, database_url, clock=clock) as test:
        await erp.outboxes.send(test, "news", "a message that waits while its program is away")
        await erp.crons.create(test, "weekly", "0 0 * * 0", created)
    async with TestApp(shop, database_url, clock=clock) as test:
        assert not events(caplog, "outbox.unknown")
        with pytest.raises(UsageError, match="declared by program 'erp'"):
            await shop.crons.remove(test, "nightly")
        assert await shop.crons.remove(test, "weekly"), "nobody declares it"
    async with TestApp(erp, database_url, clock=clock) as test:
        await erp.crons.create(test, "yearly", "0 0 1 1 *", created)
    shop.crons.declare("yearly", "0 0 1 1 *", shop.internal_mutation(nightly.handler))
    async with TestApp(shop, database_url, clock=clock) as test:
        assert [(one["cron"], one["function"]) for one in events(caplog, "cron.replaced")] == [("yearly", created.name)]


def test_an_app_has_a_name_that_can_stand_in_texts() -> None:
    for name in ("", "shop", "a", "Shop_2.eu-1", "x" * 63):
        assert App(name=name).name == name
    wrong: list[Any] = [" ", "1", "ü", "a b", "a\n", "x" * 64, None, 7, '"', "penstock;"]
    for name in wrong:
        with pytest.raises(DeclarationError, match="An app cannot be called"):
            App(name=name)
