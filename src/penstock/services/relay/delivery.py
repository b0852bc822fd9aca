"""Hands over the messages of one outbox, in order: a part of the relay.

Owns how messages are handed over: together, one by one, or beside each other; and what becomes of one that fails. Which
are next is `services/relay/source`'s, where the outbox stands `services/relay/cursor`'s, and what a failure means
`outbox/trouble`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from penstock.api.outbox.declared import DeclaredOutbox
from penstock.calls.handlers.deliveries import Delivery
from penstock.calls.run.runner import Runner
from penstock.errors import CallTimeout, LeaseLost, TryAgain, WorkerLost
from penstock.functions.function import FunctionKind
from penstock.observe import points
from penstock.observe.logs import event as log_event
from penstock.outbox.trouble import Trouble, after_failure
from penstock.services.relay.batching import Portions
from penstock.services.relay.cursor import Holder, Item, Standing
from penstock.services.relay.parallel import OF_ALL_KEYS, Beside, Hooks
from penstock.services.relay.sending import Failure, Sending, is_its_own
from penstock.services.relay.source import Upcoming
from penstock.services.service import Service
from penstock.store.contract.outboxes import Aside, Step
from penstock.store.contract.session import Session

_SLOW = 0.1  # seconds after which fewer do
_LOOK_EVERY = 0.05  # seconds; who writes with penstock wakes it at once
_STATE_EVERY = 1.0
_STAND_BY = 1.0


class Line(Service):
    """Hands over the messages of one outbox.

    Args:
        runner: Runs functions.
        declared: The outbox.
        holder: Whose lease it reads under.

    Attributes:
        on_failed: Told of each attempt that failed.
    """

    name = "outbox"

    def __init__(self, runner: Runner, declared: DeclaredOutbox, holder: Holder) -> None:
        super().__init__(runner.engine.clock)
        self._runner = runner
        self._function = declared.function
        self._outbox = declared.outbox
        self._holder = holder
        self._messages = declared.messages(runner.engine.store.dialect)
        self._standing = Standing(runner, declared.outbox)
        self._sending = Sending(runner, declared, self._messages, self._standing, self._delivered)
        self._upcoming = Upcoming(
            runner, declared.outbox, self._messages, self._standing, self._largest, self._sending.sent
        )
        self._hooks = Hooks(stops=self._stops, puts_aside=self._halted, writes=self._written)
        mutation = self._function.kind is FunctionKind.MUTATION
        self._portions = Portions(declared.outbox, self.clock, mutation=mutation)
        self._careful = 0
        self._told: set[int] = set()
        self._looked_at = -1e9
        self.on_failed: Callable[[str, Trouble], None] = lambda _outbox, _trouble: None

    async def tick(self) -> float:
        """Hand over a piece; seconds until the next look."""
        if (pause := await self._until_ready()) > 0:
            return pause
        standing, now = self._standing, self.clock.now()
        if standing.trouble is not None and not standing.trouble.due(now):
            return _until(standing.trouble.retry_at, now, _STATE_EVERY)
        items = await self._upcoming.next()
        if not items:
            return _until(standing.retry_at, self.clock.now(), _LOOK_EVERY)
        if (wait := self._wait(items)) > 0:
            return wait
        await self._hand_over(items)
        return 0.0

    @property
    def has_it(self) -> bool:
        """Whether it is this line that hands over."""
        return self._standing.row is not None

    async def next_at(self) -> datetime | None:
        """When it goes on by itself, if it waits: for a further attempt that is not beyond its policy, or to linger."""
        if self._standing.row is None:
            return None
        times, left = await self._standing.tried_again_at(), self._portions.waits()
        return min([*times, *([] if left is None else [self.clock.now() + timedelta(seconds=left)])], default=None)

    async def end(self, grace: float) -> None:
        """Stop; what is under way may end within this many seconds."""
        self._stopping = True
        self.wake.set()
        if (running := self._task) is not None:  # which is forgotten if the lease is lost meanwhile
            _done, left = await asyncio.wait([running], timeout=grace)
            for task in left:
                task.cancel()
            await asyncio.gather(running, return_exceptions=True)
            self._task = None
        with contextlib.suppress(TryAgain):  # then they are handed over once more
            unknown = self._standing.row is None or self._standing.uncertain
            if unknown and self._sending.sent and self._holder.lease is not None:
                await self._take(self._holder.lease)
            await self._sending.write_sent()
        await self._standing.leave()

    async def interrupt(self) -> None:
        """Stop what is under way, and go on when there is a lease again."""
        running = self._task is not None
        await self.kill()
        self._forget()
        if running and not self._stopping:
            self.start()

    # ----- where it stands

    def _forget(self) -> None:
        self._standing.forget()
        self._upcoming.forget()

    async def _until_ready(self) -> float:
        """See to it that this line has the outbox, as it is now; seconds until it may, or 0."""
        lease, standing = self._holder.lease, self._standing
        if lease is None or self._stopping:
            self._forget()
            return _STAND_BY
        if self._is_late():
            return _STATE_EVERY
        if standing.row is not None and (standing.uncertain or await self._is_changed()):
            self._forget()
        if (standing.row is None or standing.lease != lease) and not await self._take(lease):
            return _STAND_BY
        return 0.0 if standing.row is not None and standing.row.ready and not standing.row.paused else _STATE_EVERY

    def _is_late(self) -> bool:
        """Whether another relay may have the outbox by now, as this process was paused or the database away."""
        return self.clock.monotonic() >= self._holder.until

    async def _take(self, lease: int) -> bool:
        """Become the one who hands over; False if another is, or the outbox is not known."""
        self._forget()
        self._portions.reset()
        self._looked_at = self.clock.monotonic()
        died = await self._standing.take(lease)
        if not self._standing.again:
            self._sending.sent.clear()
        self._sending.begun.clear()
        if died is not None:
            self._careful = self._portions.whole
        elif not self._standing.again:  # who takes again what it had goes on as carefully
            self._careful = 0
        return self._standing.row is not None

    async def _is_changed(self) -> bool:
        """See from time to time whether others have changed the outbox."""
        standing, now = self._standing, self.clock.monotonic()
        quiet = self._upcoming.empty and now - self._looked_at >= _STATE_EVERY
        if not (quiet or standing.trouble is not None or (standing.row is not None and standing.row.paused)):
            return False
        self._looked_at = now
        return await standing.is_changed()

    def _largest(self) -> int:
        """How many messages are handed over together now."""
        return 1 if self._careful or self._standing.trouble is not None else self._portions.now()

    def _wait(self, items: Sequence[Item]) -> float:
        """For how long a batch still waits to be filled, where more may come."""
        first, upcoming = items[0], self._upcoming
        flows = first.aside is None and first.backfill is None
        if not flows or not upcoming.exhausted or upcoming.is_kept(first) or self._sending.is_done(first):
            return 0.0
        if (wait := self._portions.wait(items, self._largest())) > 0:
            upcoming.forget()  # so that what comes is found
        return wait

    # ----- handing over

    async def _hand_over(self, items: list[Item]) -> None:
        row = self._standing.row
        assert row is not None  # noqa: S101 - it has the outbox
        if self._upcoming.is_kept(items[0]):
            await self._write(items, put=[Aside(item.change, item.key, "waiting") for item in items])
            return
        if done := self._sending.done_of(items):  # though others were not, or it could not be written
            await self._delivered(done)
            return
        skipped = [item.change.seq for item in items if item.change.seq in row.skips]
        if skipped:
            await self._skip(items, skipped[0])
            return
        if self._careful and not await self._may_try(items[0]):
            return
        if points.armed:
            await points.reach("outbox.next", outbox=self._outbox.name, items=items)
        if self._is_late():  # it may have been suspended since it looked
            return
        if self._function.kind is FunctionKind.MUTATION or self._outbox.batch is not None:
            await self._together([*takewhile(lambda item: not self._sending.is_done(item), items)])
            return
        self._portions.more()
        wall = items[0].change.kind in OF_ALL_KEYS  # it goes alone, and not those behind it
        alone, items = wall or self._outbox.parallelism == 1 or self._largest() == 1, items[:1] if wall else items
        failure = await (self._sending.one_by_one(items, self._stops) if alone else self._beside(items))
        if failure is not None and self._standing.row is not None:
            await self._failed(*failure)

    async def _beside(self, items: Sequence[Item]) -> Failure | None:
        window = Beside(
            self._outbox, self._standing, self._upcoming, self._sending, self._hooks,
            clock=self.clock, wake=self.wake, room=self._portions.whole,
        )  # fmt: skip
        return await window.run(items)

    def _stops(self) -> bool:
        return self._stopping or self._is_late()

    async def _may_try(self, item: Item) -> bool:
        """Whether a message may be tried after a process has died, maybe of it.

        Until as many are done with as it may have been at, each is by itself, and it is written that its attempt has
        begun: so the one that ends processes is known when the next one has died.
        """
        if item.identity in self._sending.begun:
            self._careful -= 1
            return True
        known, now, most = self._sending.known(item), self.clock.now(), self._outbox.retry.max_attempts
        if known is not None and most is not None and known.deaths >= most:
            await self._pass_by(item, replace(known, halted=True, retry_at=None), known)
            return False
        error = WorkerLost("The process that delivered it died.")
        begun = after_failure(self._outbox.retry, item.change.seq, known, error, now, 0.0)
        at = now if known is None or known.retry_at is None else min(now, known.retry_at)  # so that it is next again
        begun = replace(begun, halted=False, retry_at=at, key=item.change.key, left=item.backfill)
        self._upcoming.stay()
        if item.aside is not None and item.aside.state == "halted":
            await self._write([item], put=[Aside(item.change, item.key, "halted", begun)], keeps=True)
        else:
            await self._write(trouble=begun)
        self._sending.begun[item.identity] = known
        return False

    async def _skip(self, items: list[Item], seq: int) -> None:
        """Pass a message by, and hand over those before it."""
        if items[0].change.seq != seq:
            self._portions.fewer(next(number for number, item in enumerate(items) if item.change.seq == seq))
            return
        await self._write(items[:1], skipped=[seq])
        log_event("outbox.passed", outbox=self._outbox.name, message=seq)

    async def _together(self, items: list[Item]) -> None:
        """Hand messages over in one transaction, or in one call."""
        function = self._function
        mutation, began = function.kind is FunctionKind.MUTATION, self._runner.engine.machine.monotonic()
        delivery: Delivery | None = None
        taken_away = sealed = False
        try:
            delivery = self._sending.delivery(items)
            step = self._standing.step(items, delivered=len(items))

            async def seal(session: Session) -> bool:
                nonlocal taken_away, sealed
                sealed = await self._runner.engine.store.outboxes.advance(step, self.clock.now(), session)
                taken_away = not sealed
                return sealed

            await self._sending.run(delivery, seal if mutation else None)
        except Exception as error:
            if taken_away and isinstance(error, LeaseLost):
                self._standing.lost()
                self._forget()
            elif sealed and isinstance(error, CallTimeout):
                self._standing.uncertain = True  # it may be committed all the same
                raise
            elif not mutation or not isinstance(error, TryAgain) or (len(items) == 1 and is_its_own(error)):
                await self._failed_together(items, 0 if delivery is None else delivery.done, error)
            else:
                self._again(items, error)
            return
        if mutation:
            self._standing.advanced(step)
            self._drop(items)
        else:
            self._sending.sent.update((item.identity, item) for item in items)
            await self._delivered(items)
        if mutation and self._runner.engine.machine.monotonic() - began > _SLOW:
            self._portions.slow(len(items))
        else:
            self._portions.more()

    def _again(self, items: Sequence[Item], error: TryAgain) -> None:
        """Hand fewer over together, as that may be why the database was busy."""
        self._standing.uncertain = bool(error.facts.get("uncertain"))
        if len(items) == 1 or self._standing.uncertain:
            raise error
        self._portions.fewer(len(items) // 2, items)
        log_event("outbox.again", outbox=self._outbox.name, messages=len(items), error=error)

    async def _failed_together(self, items: list[Item], done: int, error: Exception) -> None:
        """Find the message that failed: fewer are handed over together, until it is alone."""
        if len(items) > 1:
            halves = done == len(items) or (not done and self._outbox.batch is not None)  # nobody knows which it was
            self._portions.fewer(len(items) // 2 if halves else max(1, done), items)
            return
        await self._failed(items[0], error)

    # ----- failures

    async def _failed(self, item: Item, error: Exception) -> None:
        """What becomes of a message that failed."""
        await self._pass_by(item, *self._trouble(item, error))

    def _trouble(self, item: Item, error: Exception) -> tuple[Trouble, Trouble | None]:
        """What is known of a message that failed, and what was before."""
        known, now = self._sending.known(item), self.clock.now()
        trouble = after_failure(self._outbox.retry, item.change.seq, known, error, now, self.clock.random())
        self._sending.begun.pop(item.identity, None)
        return trouble, known

    def _halted(self, item: Item, error: Exception) -> Aside:
        """How a message is put aside which those of its key wait for."""
        trouble, known = self._trouble(item, error)
        trouble = replace(trouble, key=item.change.key)
        self._tell(item, trouble, known, halts=trouble.halted)
        return Aside(item.change, item.key, "halted", trouble)

    async def _pass_by(self, item: Item, trouble: Trouble, known: Trouble | None) -> None:
        trouble = replace(trouble, key=item.change.key, left=item.backfill)
        policy = "halt" if item.change.kind == "lost" else self._outbox.on_failure
        self._tell(item, trouble, known, halts=trouble.halted and policy != "park")
        if policy == "halt_key":
            put = Aside(item.change, item.key, "halted", trouble)
            await self._write([item], put=[put], keeps=True)
        elif policy == "park" and trouble.halted:
            await self._write([item], put=[Aside(item.change, item.key, "parked", trouble)], keeps=True)
            log_event("outbox.parked", logging.ERROR, outbox=self._outbox.name, message=trouble.seq, key=item.told_key)
        else:
            await self._write(trouble=trouble)

    def _tell(self, item: Item, trouble: Trouble, known: Trouble | None, *, halts: bool) -> None:
        outbox, message, attempts = self._outbox.name, item.change.seq, trouble.attempts
        facts: dict[str, Any] = {"outbox": outbox, "message": message, "key": item.told_key, "attempts": attempts}
        self._standing.count("penstock_outbox_failed", min(attempts, 1))  # none if it was only put off
        log_event("outbox.failed", logging.WARNING, **facts, error=trouble.error)
        again = known is not None and known.attempts and message in self._told
        if halts and not again:
            self._told.add(message)
            log_event("outbox.halted", logging.ERROR, **facts, error=trouble.error)
        self.on_failed(outbox, trouble)

    async def _write(
        self,
        items: Sequence[Item] = (),
        *,
        trouble: Trouble | None = None,
        put: Sequence[Aside] = (),
        skipped: Sequence[int] = (),
        delivered: int = 0,
        keeps: bool = False,
    ) -> None:
        """Write that messages are done with, or have failed."""
        step = self._standing.step(items, trouble=trouble, put=put, skipped=skipped, delivered=delivered, keeps=keeps)
        await self._written(step, () if put else items)
        self._upcoming.drop(items)

    async def _delivered(self, items: Sequence[Item]) -> None:
        passed = self._standing.passed  # and counted before
        await self._write(items, delivered=sum(item.aside is not None or item.identity not in passed for item in items))

    async def _written(self, step: Step, items: Sequence[Item]) -> None:
        """Write a step by which these are done with."""
        if await self._standing.write(step):
            self._drop(items)
        else:
            self._forget()

    def _drop(self, items: Sequence[Item]) -> None:
        """These are done with."""
        self._upcoming.drop(items)
        for item in items:
            self._sending.forget(item)
            self._told.discard(item.change.seq)


def _until(moment: datetime | None, now: datetime, most: float) -> float:
    return most if moment is None else min(most, max(0.001, (moment - now).total_seconds()))
