"""Callers that go on while the database goes away and comes back, and what must be true of their calls afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from stage import ledger
from stage.waits import until

from penstock.app import Backend
from penstock.errors import DatabaseUnavailable


async def answer(true: bool) -> bool:
    return true


async def finished(backend: Backend, count: int) -> None:
    """Wait until so many jobs have succeeded."""

    async def all_have() -> bool:
        return (await backend.job_counts()).get("success", 0) == count

    await until(all_have)


class Callers:
    """Call one mutation after the other, and remember what became of each call."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.acknowledged: dict[str, set[int]] = {"direct": set(), "job": set()}
        self.uncertain: dict[str, set[int]] = {"direct": set(), "job": set()}
        self.stopped = False

    async def call(self, numbers: range) -> None:
        """Enter numbers, at once and by jobs, until it is enough."""
        for number in numbers:
            if self.stopped:
                return
            await self._noted("direct", number, self.backend.run_mutation(ledger.enter, what="direct", number=number))
            job = self.backend.run_mutation(ledger.schedule_entries, what="job", first=number, count=1)
            await self._noted("job", number, job)

    async def _noted(self, what: str, number: int, call: Coroutine[Any, Any, None]) -> None:
        try:
            await call
        except DatabaseUnavailable as error:
            if not error.facts.get("uncertain"):
                raise
            self.uncertain[what].add(number)
        else:
            self.acknowledged[what].add(number)

    async def more(self, count: int) -> None:
        """Wait until so many more calls were acknowledged."""
        before = len(self.acknowledged["direct"])
        await until(lambda: answer(len(self.acknowledged["direct"]) >= before + count))


async def no_job_is_left(backend: Backend) -> bool:
    counts = await backend.job_counts()
    return not any(count for place, count in counts.items() if place != "success")


async def calls_are_kept(front: Backend, disturb: Callable[[], Awaitable[None]], times: int = 2) -> None:
    """Disturb callers and workers while they are busy: what was acknowledged is done once, and all of it is done."""
    callers = Callers(front)
    calls = [asyncio.create_task(callers.call(range(n * 100_000, (n + 1) * 100_000))) for n in range(4)]
    for _ in range(times):
        await callers.more(50)
        await disturb()
    await callers.more(50)
    callers.stopped = True
    await asyncio.gather(*calls)
    await until(lambda: no_job_is_left(front))
    for what, acknowledged in callers.acknowledged.items():
        found = await front.run_query(ledger.entries, what=what)
        assert len(found) == len(set(found)), "nothing happened twice"
        assert acknowledged <= set(found) <= acknowledged | callers.uncertain[what]


async def hear_again(front: Backend, *deaf: Backend) -> None:
    """A job starts although the workers would look by themselves in an hour only."""
    await until(lambda: answer(all(listens(backend) for backend in deaf)))
    for backend in deaf:
        for service in backend.services.services:
            service._poll = 3600.0  # type: ignore[attr-defined]
            service.wake.set()  # it may be waiting by the poll that it had before
    counts = await front.job_counts()
    await front.run_mutation(ledger.schedule_entries, what="heard", first=0, count=1)
    await finished(front, counts.get("success", 0) + 1)


def listens(backend: Backend) -> bool:
    """Whether notifications reach a backend, as far as it knows."""
    return bool(backend.engine.store.signals.listening)  # type: ignore[attr-defined]
