"""The state of one outbox: what the database has, what was delivered since, and what to do next. It does no I/O.

`OutboxState` is frozen. Each event is a method that gives the next state, or what to do (`Decision`). `cursor` performs
writes; a write changes the state only once it is committed, so one that was refused never counts as done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from itertools import takewhile

from penstock.changes.position import BEGINNING, Position
from penstock.dataclass import dataclass
from penstock.errors import WorkerLost
from penstock.outbox.outbox import Outbox
from penstock.outbox.trouble import Trouble, after_failure
from penstock.services.relay.items import Item
from penstock.store.nouns.outboxes import Aside, Identity, OutboxRow, Step
from penstock.store.nouns.tasks import Move

_GROUP = 100  # messages that share a transaction
_CALLS = 500  # messages that share a transaction where one call takes many
_NONE = frozenset[Identity]()


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that failed."""

    items: Sequence[Item]
    error: Exception
    done: int = 0  # how many of them the handler had been through
    busy: bool = False  # whether the database was busy, maybe because there were so many


@dataclass(frozen=True, slots=True)
class Report:
    """A failed attempt, to be counted and logged."""

    item: Item
    trouble: Trouble
    halts: bool  # whether it is news that the message halts others


@dataclass(frozen=True, slots=True)
class Write:
    """A step to write; it counts once it is committed."""

    step: Step
    drops: Sequence[Item] = ()  # messages that the source forgets
    settled: Sequence[Item] = ()  # messages that are forgotten altogether
    begun: tuple[Item, Trouble | None] | None = None  # an attempt that begins: its message, and the trouble before


@dataclass(frozen=True, slots=True)
class Decision:
    """The acts to do, in this order."""

    report: Report | None = None
    write: Write | None = None
    deliver: Sequence[Item] = ()


@dataclass(frozen=True, slots=True)
class Batching:
    """How many messages of one outbox are delivered together: `whole`, or fewer for a while."""

    whole: int
    limit: int | None = None  # at most so many, as some have failed
    tried: frozenset[Identity] = _NONE  # messages that do not linger again
    careful: int = 0  # so many more are delivered alone, as a process has died, maybe of one of them
    since: float | None = None  # when the present batch began to linger

    @classmethod
    def of(cls, outbox: Outbox, *, in_transaction: bool) -> Batching:
        size = outbox.batch
        if not in_transaction:
            return cls(size or _GROUP * outbox.parallelism)
        return cls(_GROUP if size is None else max(size, _CALLS // size * size))

    @property
    def size(self) -> int:
        return 1 if self.careful else min(self.limit or self.whole, self.whole)

    def fewer(self, most: int, items: Sequence[Item] = ()) -> Batching:
        """At most so many at once; these were tried, and do not linger again."""
        tried = self._retries_with(items[0]) if items else self.tried
        return replace(self, limit=most, tried=tried.union(item.identity for item in items))

    def more(self) -> Batching:
        if self.limit is None:
            return self
        return replace(self, limit=None if self.limit >= _GROUP else self.limit * 2)

    def linger(self, outbox: Outbox, items: Sequence[Item], most: int, now: float) -> tuple[Batching, float]:
        """The time for which messages wait for others, if there are none now and `most` may be delivered together."""
        seconds, tried = outbox.linger.total_seconds(), self._retries_with(items[0])
        if not seconds or len(items) >= min(outbox.batch or 1, most) or tried:
            return replace(self, tried=tried, since=None), 0.0
        since = now if self.since is None else self.since
        left = max(0.0, since + seconds - now)
        return replace(self, tried=tried, since=since if left else None), left

    def _retries_with(self, first: Item) -> frozenset[Identity]:
        return self.tried if first.identity in self.tried else _NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxState:
    """The knowledge of a relay about one outbox."""

    outbox: Outbox
    batching: Batching
    row: OutboxRow | None = None  # as it is written; None if it is not known, or another relay has it
    lease: int | None = None
    position: Position = BEGINNING
    keys: frozenset[str] = frozenset()  # of set-aside messages that wait or have failed
    inserts: frozenset[int] = frozenset()  # set-aside messages that are inserts, and mere changes in the feed
    retry_at: datetime | None = None  # when a set-aside message is tried again
    may_be_released: bool = True  # whether set-aside messages may wait for none of their key any more
    uncertain: bool = False  # whether the last write may have been committed, and nobody knows
    sent: Mapping[Identity, Item] = field(default_factory=dict)  # delivered in earlier windows, and not written
    begun: Mapping[Identity, Trouble | None] = field(default_factory=dict)  # noted attempts: the trouble before each
    halted: frozenset[int] = frozenset()  # messages whose halt was logged

    @property
    def trouble(self) -> Trouble | None:
        """The trouble of the next message, if it has failed."""
        return None if self.row is None else self.row.trouble

    @property
    def passed(self) -> frozenset[Identity]:
        """Finished messages behind the position, as written."""
        return frozenset() if self.row is None else self.row.passed

    @property
    def all_finished(self) -> set[Identity]:
        """Finished messages behind the position, written or not."""
        return {*self.sent, *self.passed}

    @property
    def at_once(self) -> int:
        """The number of messages that may be delivered together now."""
        return 1 if self.trouble is not None else self.batching.size

    @property
    def by_key(self) -> bool:
        """Whether other keys go on when a message fails."""
        return self.outbox.on_failure == "halt_key"

    def waits_for_key(self, item: Item) -> bool:
        """Whether a message waits for another one of its key; an older row only for one that has failed."""
        if item.aside is not None or item.key not in self.keys or (item.backfill is not None and not self.by_key):
            return False
        return item.identity not in self.sent and item.identity not in self.passed

    def was_sent(self, item: Item) -> bool:
        """Whether a message was sent and that is not written: a set-aside one from aside, others from their place."""
        sent = self.sent.get(item.identity)
        return sent is not None and (sent.aside is None) is (item.aside is None)

    def is_done(self, item: Item) -> bool:
        """Whether a message was sent, or passed, or was set aside only to tell of a row that was delivered."""
        return item.silent or self.was_sent(item) or (item.aside is None and item.identity in self.passed)

    def is_unwritten(self, item: Item) -> bool:
        """Whether a message was sent and is not written at all."""
        return self.was_sent(item) and (item.aside is not None or item.identity not in self.passed)

    def trouble_of(self, item: Item) -> Trouble | None:
        """The trouble of a message that has failed before."""
        if item.identity in self.begun:
            return self.begun[item.identity]
        if self.trouble is not None and self.trouble.is_of(item.change):
            return self.trouble
        return None if item.aside is None else item.aside.trouble

    def _trouble_without(self, items: Sequence[Item]) -> Trouble | None:
        """The trouble of the next message, if it is none of these."""
        trouble = self.trouble
        return None if trouble is None or any(trouble.is_of(item.change) for item in items) else trouble

    # ----- holding the outbox

    def ask(self, *, resumed: bool = False, died: bool = False) -> OutboxState:
        """Begin again, before the outbox is taken. `resumed` says that nobody has moved it since it was lost."""
        careful = self.batching.whole if died else self.batching.careful if resumed else 0
        batching = replace(self.batching, limit=None, tried=frozenset(), careful=careful)
        sent, begun = (self.sent, self.begun) if resumed else ({}, {})
        return replace(self, sent=sent, begun=begun, batching=batching)

    def forget(self) -> OutboxState:
        """Lose the outbox: another relay has it, or others have changed it."""
        return replace(self, row=None, lease=None, uncertain=False)

    def remember(self, sent: Sequence[Item]) -> OutboxState:
        """Remember messages that were sent and are not written at all."""
        return replace(self, sent={**self.sent, **{item.identity: item for item in sent}}) if sent else self

    # ----- the next messages

    def next(self, items: Sequence[Item], now: datetime) -> tuple[OutboxState, Decision]:
        """Set messages aside that wait for their key, pass finished and skipped ones by, and deliver the others."""
        assert self.row is not None  # noqa: S101 - it has the outbox
        if self.waits_for_key(items[0]):
            return self, Decision(write=self.write(items, put=[item.set_aside("waiting") for item in items]))
        if done := self._already_done(items):
            delivered = sum(map(self.is_unwritten, done))
            return self, Decision(write=self.write(done, delivered=delivered, settled=done))
        for number, item in enumerate(items):
            if item.change.seq in self.row.skips:
                if number:  # once those before it are delivered
                    return replace(self, batching=self.batching.fewer(number)), Decision()
                skip = self.write(items[:1], skipped=[item.change.seq], settled=items[:1])
                return self, Decision(write=skip)
        if self.batching.careful:
            return self._try_carefully(items[0], now)
        return self, Decision(deliver=items)

    def _already_done(self, items: Sequence[Item]) -> list[Item]:
        """Messages that are done already; only the first ones, but set-aside ones anywhere."""
        if items[0].aside is not None:
            return [item for item in items if self.is_done(item)]
        return list(takewhile(self.is_done, items))

    def _try_carefully(self, item: Item, now: datetime) -> tuple[OutboxState, Decision]:
        """Deliver a message after a process has died, maybe of it.

        Each is delivered alone, and the beginning of its attempt is written. This ends after as many as the process may
        have had under way. So a poison message is known when the next process has died of it. The first death counts as
        one of its attempts.
        """
        if item.identity in self.begun:
            batching = replace(self.batching, careful=self.batching.careful - 1)
            return replace(self, batching=batching), Decision(deliver=[item])
        known, most = self.trouble_of(item), self.outbox.retry.max_attempts
        if known is not None and most is not None and known.deaths >= max(most, 2):
            state, report = self.report(item, replace(known, halted=True, retry_at=None), known)
            return state, state.pass_by(report)
        error = WorkerLost("The process that delivered it died.")
        begun = after_failure(self.outbox.retry, item.change.seq, known, error, now, 0.0)
        at = now if known is None or known.retry_at is None else min(now, known.retry_at)  # so that it is next again
        begun = replace(begun, halted=False, deaths=max(begun.deaths, 2), retry_at=at)
        begun = replace(begun, key=item.change.key, left=item.backfill)
        if item.is_retry:
            write = self.write([item], put=[item.set_aside("halted", begun)])
        else:
            write = self.write(trouble=begun)
        return self, Decision(write=replace(write, begun=(item, known)))

    # ----- failures

    def fail(self, failure: Failure, now: datetime, chance: float) -> tuple[OutboxState, Decision]:
        """Find the message that failed: fewer are delivered together, until it is alone. Then follow the policy."""
        items, done = failure.items, failure.done
        if len(items) > 1:
            halves = failure.busy or done == len(items) or (not done and self.outbox.batch is not None)  # nobody knows
            batching = self.batching.fewer(len(items) // 2 if halves else max(1, done), items)
            return replace(self, batching=batching), Decision()
        state, report = self.fail_one(items[0], failure.error, now, chance)
        return state, state.pass_by(report)

    def fail_one(self, item: Item, error: Exception, now: datetime, chance: float) -> tuple[OutboxState, Report]:
        """Count a failed attempt to deliver a message."""
        known = self.trouble_of(item)
        trouble = after_failure(self.outbox.retry, item.change.seq, known, error, now, chance)
        begun = {identity: before for identity, before in self.begun.items() if identity != item.identity}
        return replace(self, begun=begun).report(item, trouble, known)

    def report(self, item: Item, trouble: Trouble, known: Trouble | None) -> tuple[OutboxState, Report]:
        """The trouble of a message, `known` before, and whether it is news that it halts others."""
        seq, halts = item.change.seq, trouble.halted and self._policy(item) != "park"
        again = known is not None and known.attempts > 0 and seq in self.halted
        report = Report(item, replace(trouble, key=item.change.key, left=item.backfill), halts and not again)
        return replace(self, halted=self.halted | {seq}) if halts else self, report

    def pass_by(self, report: Report) -> Decision:
        """Follow the policy of the outbox: halt, halt the key, or park the message as a dead letter."""
        item, trouble, policy = report.item, report.trouble, self._policy(report.item)
        if policy == "halt" or (policy == "park" and not trouble.halted):
            return Decision(report, self.write(trouble=trouble))
        put = item.set_aside("halted" if policy == "halt_key" else "parked", trouble)
        return Decision(report, self.write([item], put=[put]))

    def _policy(self, item: Item) -> str:
        return "halt" if item.change.kind == "lost" else self.outbox.on_failure

    # ----- writing

    def write(
        self,
        items: Sequence[Item] = (),
        *,
        after: Position | None = None,  # by default behind these messages
        trouble: Trouble | None = None,
        put: Sequence[Aside] = (),  # a message that was set aside before stays there
        skipped: Sequence[int] = (),
        delivered: int = 0,
        backfill: str | None = None,  # by default as the messages say
        filled: bool = False,  # no older rows are left
        passed: Collection[Identity] = (),  # finished as well, though messages before them are not
        settled: Sequence[Item] = (),
    ) -> Write:
        """The step to write once these messages are finished."""
        assert self.row is not None and self.lease is not None  # noqa: PT018, S101 - it has the outbox
        if trouble is None and items and all(item.aside is not None for item in items):
            trouble = self._trouble_without(items)
        place = after or next((item.after for item in reversed(items) if item.batch is not None), None)
        left = next((item.backfill for item in reversed(items) if item.backfill is not None), self.row.backfill)
        stay = {one.change.seq for one in put}
        step = Step(
            outbox=self.row,
            move=Move(self.outbox.reader, self.lease, self.position, place or self.position),
            backfill=None if filled else backfill or left,
            trouble=trouble,
            delivered=delivered,
            put=put,
            taken=[item.change.seq for item in items if item.aside is not None and item.change.seq not in stay],
            skipped=skipped,
            passed=self._next_passed(items, passed, moved=after is not None, filled=filled),
        )
        return Write(step, items, settled)

    def write_sent(self) -> Write | None:
        """The step to write when a window was cut short: messages were sent, though those before them may not be."""
        sent = [item for item in self.sent.values() if self.is_unwritten(item)]
        if not sent or self.row is None:
            return None
        aside = [item for item in sent if item.aside is not None]
        passed = {item.identity for item in sent if item.aside is None}
        return self.write(aside, trouble=self._trouble_without(sent), delivered=len(sent), passed=passed)

    def _next_passed(
        self, items: Sequence[Item], more: Collection[Identity], *, moved: bool, filled: bool
    ) -> frozenset[Identity]:
        """The finished messages behind the position once these are done; none if no message comes before it."""
        if not more and not self.passed:
            return self.passed
        known = self.passed.union(more).difference(item.identity for item in items if item.aside is None)
        return frozenset(one for one in known if not (filled if one[0] == 0 else moved))

    def apply(self, write: Write, now: datetime) -> OutboxState:
        """Apply a step that is committed."""
        step, row = write.step, write.step.outbox
        row = replace(
            row,
            backfill=step.backfill,
            skips=tuple(seq for seq in row.skips if seq not in step.skipped),
            trouble=step.trouble,
            passed=step.passed,
            delivered_at=now if step.delivered else row.delivered_at,
        )
        state = replace(self, row=row, position=step.move.after, uncertain=False)
        if step.put or step.taken:
            state = state.move_aside(step, now)
        if write.settled and (self.sent or self.begun or self.halted):
            state = state.settle(write.settled)
        if write.begun is not None:
            state = replace(state, begun={**state.begun, write.begun[0].identity: write.begun[1]})
        return state

    def move_aside(self, step: Step, now: datetime) -> OutboxState:
        """Know messages as set aside, or as taken from there."""
        failed, waiting = ({one.key for one in step.put if one.state == state} for state in ("halted", "waiting"))
        # messages behind one that was put aside before wait for it still
        released = step.taken or waiting - failed - self.keys or any(one.state == "parked" for one in step.put)
        times = [one.trouble.retry_at for one in step.put if one.state == "halted" and one.trouble is not None]
        before = now if self.retry_at is not None and step.taken else self.retry_at  # it may have been that one
        return replace(
            self,
            keys=self.keys if self.keys >= failed | waiting else self.keys | failed | waiting,
            may_be_released=self.may_be_released or bool(released),
            retry_at=min((at for at in (before, *times) if at is not None), default=None),
        )

    def settle(self, items: Sequence[Item]) -> OutboxState:
        """Forget messages; one that was sent from aside stays known if only its place in the feed is finished."""
        gone = {item.identity for item in items if item.identity not in self.sent or self.was_sent(item)}
        halted = self.halted.intersection(item.change.seq for item in items)
        return replace(
            self,
            sent={one: item for one, item in self.sent.items() if one not in gone},
            begun={one: known for one, known in self.begun.items() if one not in gone},
            halted=self.halted - halted if halted else self.halted,
        )
