"""The state machine of jobs, through a store: each move that is declared is made, and no other one is seen."""

from __future__ import annotations

from conformance.bench import AGAIN, KEEP, NOW, Bench, Suite, after, ended, lose, new_job, story
from conformance.tokens import token_for
from penstock.jobs.job import Job, NewJob, Settlement
from penstock.jobs.settle import complete, settle_cancel
from penstock.jobs.states import FINISHED, MOVES, JobEvent, JobState
from penstock.store.session import Session

Move = tuple[JobState, JobEvent, JobState]

# What brings a job to a state; to the end of a job with an on_complete that is still to run, just as well.
_WAYS = {
    JobState.PENDING: (),
    JobState.RUNNING: (JobEvent.CLAIMED,),
    JobState.SUCCESS: (JobEvent.CLAIMED, JobEvent.RETURNED),
    JobState.FAILED: (JobEvent.CLAIMED, JobEvent.EXHAUSTED),
    JobState.CANCELED: (JobEvent.CANCELED,),
    JobState.SKIPPED: (JobEvent.SKIPPED,),
}
# What happens to an attempt, of which the rules make the event: no attempt is left, or it may not run again.
_HAPPENS = {JobEvent.EXHAUSTED: JobEvent.RAISED, JobEvent.ABANDONED: JobEvent.LOST}
_AGAIN = {(JobState.RUNNING, JobEvent.RAISED), (JobState.RUNNING, JobEvent.LOST)}  # which need another attempt

# The events of a job whose on_complete is due or under way. COMPLETED leads to the end that was known before,
# and RECALLED back from there, if the on_complete had raised for the last time.
STAYS = (JobEvent.RAISED, JobEvent.SNOOZED, JobEvent.HANDED_BACK, JobEvent.LOST)


def moves() -> list[tuple[JobState, JobEvent, JobState]]:
    """All moves there are, with and without an on_complete: from, event, to."""
    return [
        *((state, event, to) for (state, event), to in MOVES.items()),
        *((state, event, JobState.COMPLETING) for (state, event), to in MOVES.items() if to in FINISHED),
        *((JobState.COMPLETING, event, JobState.COMPLETING) for event in STAYS),
        *((JobState.COMPLETING, JobEvent.COMPLETED, to) for to in JobState if to in FINISHED),
        *((end, JobEvent.RECALLED, JobState.COMPLETING) for end in JobState if end in FINISHED),
    ]


class Moves(Suite):
    @story
    async def test_every_move_of_the_state_machine(self, bench: Bench) -> None:
        made: set[Move] = set()
        for state, event, to in moves():
            walk = await _begin(bench, state, event, to)
            move = await walk.go(event)
            assert move == (state, event, to)
            made |= {move, *walk.made}
        assert made == set(moves())


class _Walk:
    """A job on its way, and the moves that were seen of it: states as the store tells them, events as it was told."""

    def __init__(self, bench: Bench, job: NewJob, lease: int) -> None:
        self.id, self.lease = job.id, lease
        self.made: list[Move] = []
        self._bench = bench
        self._claimed: Job | None = None

    async def go(self, event: JobEvent) -> Move:
        """Let something happen to the job; the move that was made."""
        state = await self._state()
        seen = await self._make(state, event)
        self.made.append((state, seen, await self._state()))
        return self.made[-1]

    async def claim(self) -> Job:
        found = {job.id: job for job in await self._bench.claim(self.lease)}
        self._claimed = found[self.id]
        return self._claimed

    async def _make(self, state: JobState, event: JobEvent) -> JobEvent:
        if event is JobEvent.CLAIMED:
            await self.claim()
        elif event is JobEvent.RETRIED:
            assert await self._bench.retry(self.id) == [self.id]
        elif event is JobEvent.RECALLED:
            assert await self._bench.recall(self.id) == [self.id]
        elif event is JobEvent.HELD:
            await self._hold()
        elif state is JobState.PENDING:
            return await self._cancel(event)
        else:
            return await self._end(event, await self.claim() if state is JobState.COMPLETING else self._claimed)
        return event

    async def give_up(self) -> None:
        settlement = ended(await self.claim(), JobEvent.RAISED, error="No", retryable=False)
        assert await self._bench.settle(self.lease, settlement) == {self.id}

    async def _hold(self) -> None:
        assert self._claimed is not None
        tokens, attempt = self._bench.store.tokens, self._claimed.attempt
        assert await tokens.issue(self.lease, token_for(self._claimed), after(3600))
        assert await tokens.hold(self.lease, [(self.id, attempt)]) == {self.id}

    async def _cancel(self, event: JobEvent) -> JobEvent:
        settled: dict[object, Settlement] = {}

        def decide(jobs: list[Job]) -> list[Settlement]:
            settled.update({job.id: settle_cancel(job, NOW, KEEP, event) for job in jobs})
            return [settled[job.id] for job in jobs]

        await self._bench.request_cancel(self.id)
        await self._bench.store.jobs.cancel_pending(NOW, 100, decide)
        return settled[self.id].event

    async def _end(self, event: JobEvent, claimed: Job | None) -> JobEvent:
        assert claimed is not None
        happened = _HAPPENS.get(event, event)
        if happened is JobEvent.LOST:
            return await self._lose()
        if happened is JobEvent.COMPLETED:
            assert claimed.ending is not None
            settlement = complete(claimed, claimed.ending, NOW, KEEP)
        else:
            settlement = ended(claimed, happened, error="what went wrong")

        async def write(session: Session) -> bool:
            return await self._bench.store.jobs.settle_within(session, self.lease, settlement)

        if happened is JobEvent.COMPLETED:  # with the effects of its on_complete
            assert await self._bench.writing(write)
        else:
            assert await self._bench.settle(self.lease, settlement) == {self.id}
        return settlement.event

    async def _lose(self) -> JobEvent:
        settled: dict[object, Settlement] = {}

        def decide(jobs: list[Job]) -> list[Settlement]:
            settled.update({one.id: one for one in lose(after(31))(jobs)})
            return list(settled.values())

        await self._bench.store.leases.rescue(self.lease, after(31), decide)
        return settled[self.id].event

    async def _state(self) -> JobState:
        return (await self._bench.status(self.id)).state


async def _begin(bench: Bench, state: JobState, event: JobEvent, to: JobState) -> _Walk:
    """A job that is brought to a state, from which an event is to lead to another one."""
    on_complete = "conformance:told" if JobState.COMPLETING in {state, to} else None
    retry = AGAIN if (state, event) in _AGAIN else None
    job = new_job("action", retry=retry, on_complete=on_complete)
    await bench.enqueue(job)
    walk = _Walk(bench, job, await bench.lease())
    end = to if to in FINISHED else JobState.SUCCESS
    for step in _WAYS[end if state is JobState.COMPLETING else state]:
        await walk.go(step)
    if event is JobEvent.RECALLED:
        await walk.give_up()
    assert (await bench.state(job.id)) == state.value
    return walk
