"""Counts, from the rows and the traces of a run, what was lost, done twice, over a limit or out of order."""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from chaos.flows import faults_of
from chaos.load import LEASE, Load
from chaos.program import FLOW, KEYS, LIMIT, WRITERS, job_numbers, kind_of

from penstock.app import Backend
from penstock.jobs.filter import JobFilter
from penstock.jobs.job import JobStatus
from penstock.store.session import Row, Statement, reading

# By the number of its kind: what each job leaves exactly once as rows, and how often its action runs.
ROWS = {
    0: ("scheduled",),
    1: ("delayed",),
    3: ("pooled",),
    6: ("failing failed",),
    7: ("completed", "completed success"),
    8: ("acted success",),
    9: ("raised failed",),
    12: ("dropped canceled",),
    15: ("chain", "chained"),
}
AT_MOST_ONCE = {2: "action", 4: "pooled-action"}
AT_LEAST_ONCE = {5: "retried", 6: "failing", 8: "acted", 10: "limited", 11: "keyed", 13: "thread", 14: "batched"}
_EXAMPLES = 5


@dataclass
class Outcome:
    """What a run has shown.

    Attributes:
        lost: Acknowledged rows, promised effects, messages and states that are missing, and a live query that lags.
        twice: What takes effect exactly once, or runs at most once, and did so again.
        over_limit: Actions that began while as many ran as their pool or their key allows.
        out_of_order: Messages that came after a later one of their writer; live answers that went back or were torn.
        duplicates: Repeated runs and deliveries of what is promised at least once.
        unrun: Actions that never ran, as a worker was lost with each of their one or two attempts; and mutations
            and runs of workflows that lost five workers.
        recovery: The longest time in seconds from the end of a fault until writes, jobs and messages went on.
        examples: Of what was lost, the first ones, and how jobs ended that did not succeed.
        still: By what another server took over: how many seconds writes, jobs, messages and live answers stood still.
    """

    lost: int = 0
    twice: int = 0
    over_limit: int = 0
    out_of_order: int = 0
    duplicates: int = 0
    unrun: int = 0
    recovery: float = 0.0
    examples: list[str] = field(default_factory=list)
    still: dict[str, dict[str, float]] = field(default_factory=dict)

    def lose(self, what: str, missing: AbstractSet[object]) -> None:
        self.lost += len(missing)
        self.examples += [f"{what} {one}" for one in sorted(map(str, missing))[:_EXAMPLES]]

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.twice or self.over_limit or self.out_of_order)


def lines(load: Load, file: str) -> Iterator[tuple[float, int, list[str]]]:
    """The lines of a trace: when, by which process, and what."""
    path = load.folder / file
    for line in path.read_text().splitlines() if path.exists() else ():
        moment, process, *words = line.split()
        yield float(moment), int(process), words


async def outcome_of(load: Load, backend: Backend) -> Outcome:
    found = Outcome()
    ran = Counter((what, number) for what, number in await look(backend, "select what, number from ran"))
    deserted = await backend.jobs("failed", 10_000, where=JobFilter(error="WorkerLost"))
    abandoned = [(job.function, job.args) for job in deserted]
    _count_rows(found, load, ran, abandoned)
    _count_runs(found, load)
    await _count_flows(found, load, backend, {job.args["number"] for job in await parked(backend)})
    sorted_rows = await look(backend, "select writer, number from sorted order by place")
    placed = [(writer, number) for writer, number in sorted_rows]
    _count_messages(found, "sorted", parcels(load), placed, exactly=True)
    for file in "sent", "said":
        wanted = {one for one in parcels(load) if file == "sent" or one[1] % 2}
        got = [(int(words[0]), int(words[1])) for _, _, words in lines(load, file)]
        _count_messages(found, file, wanted, got)
    written = await look(backend, "select writer, number from parcel")
    acknowledged = {(int(words[0]), int(words[1])) for _, _, words in lines(load, "wrote")}
    found.lose("row", acknowledged - {(a, b) for a, b in written})
    found.twice += len(written) - len(set(map(tuple, written)))
    _count_answers(found, load)
    if found.lost:
        ends = Counter((one.function, one.state.value, one.error) for one in await backend.jobs(limit=10_000))
        found.examples += [f"{count} {name} {state}: {error}" for (name, state, error), count in ends.items() if error]
    over = _over_limit(load)
    found.over_limit = len(over)
    found.examples += [f"over {what} {at:.2f} s after fault {number}" for what, number, at in over[:_EXAMPLES]]
    found.still = _still(load)
    found.recovery = max(_recovery(load), *(max(gaps.values()) for gaps in found.still.values()), 0.0)
    return found


async def look(backend: Backend, sql: str) -> Sequence[Row]:
    """Rows of one snapshot: unlike another writer, it conflicts with nothing of the program."""
    async with reading(backend.engine.store.begin_read) as session:
        return await session.fetch(Statement(sql), ())


async def parked(backend: Backend) -> Sequence[JobStatus]:
    """The runs of workflows that lost five workers in a row."""
    return await backend.jobs("pending", 10_000, where=JobFilter(error="workers died in a row"))


async def remaining(load: Load, backend: Backend) -> tuple[int, ...]:
    """How many jobs, last states, messages and counts of the live query are still to come: all 0 at the end.

    A state counts on its own: until a planner has read its change, it has no job.
    """
    counts, left_aside = await backend.job_counts(), len(await parked(backend))
    states = await look(backend, "select max(number) from ran where what like 'state %' group by what")
    (handled,), *_ = await look(backend, "select count(*) from sorted")
    whole = len(parcels(load))
    said, sent = (len({tuple(words) for _, _, words in lines(load, file)}) for file in ("said", "sent"))
    last = [int(words[0]) for _, _, words in lines(load, "seen")][-1:]
    return (
        sum(counts.get(state, 0) for state in ("ready", "scheduled", "retrying", "running")) - left_aside,
        WRITERS - states.count((load.size.rows,)),
        whole - handled,
        whole - sent,
        load.size.rows // 2 * WRITERS - said,
        whole - sum(last),
    )


def parcels(load: Load) -> set[tuple[int, int]]:
    return {(writer, number) for writer in range(WRITERS) for number in range(load.size.rows)}


def jobs(load: Load) -> Iterator[int]:
    for writer, number in parcels(load):
        yield from job_numbers(writer, number, load.size.jobs)


def without_effect(function: str, args: Mapping[str, Any]) -> set[tuple[str, int]]:
    """What a mutation leaves undone that has lost five workers: it ends as failed, as is promised."""
    whats = {"enter": (args.get("what"),), "enter_and_pass_on": ROWS[15]}.get(function.partition(":")[2], ())
    also = ("completed success",) if whats == ("completed",) else ()
    return {(what, args["number"]) for what in (*whats, *also)}


def _count_rows(
    found: Outcome, load: Load, ran: Counter[tuple[str, int]], deserted: Iterable[tuple[str, Mapping[str, Any]]]
) -> None:
    undone = [effects for one in deserted if (effects := without_effect(*one))]
    found.unrun += len(undone)
    wanted = {(what, number) for number in jobs(load) for what in ROWS.get(kind_of(number), ())}
    wanted |= {(f"state {writer}", load.size.rows) for writer in range(WRITERS)}
    wanted -= set().union(*undone)
    wanted |= {("completed failed", number) for effects in undone for what, number in effects if what == "completed"}
    found.lose("effect", wanted - ran.keys())
    found.twice += sum(count - 1 for count in ran.values())
    found.twice += sum(1 for what, number in ran if (what, number) not in wanted and not what.startswith("state "))


def _count_runs(found: Outcome, load: Load) -> None:
    begun = Counter(int(words[1]) for _, _, words in lines(load, "ran") if words[2] == "begins")
    for number in jobs(load):
        kind = kind_of(number)
        if kind in AT_MOST_ONCE:
            found.twice += max(0, begun[number] - 1)
            found.unrun += begun[number] == 0
        elif kind in AT_LEAST_ONCE:
            asked = 2 if AT_LEAST_ONCE[kind] == "failing" else 1  # it fails, and has two attempts
            if begun[number] == 0 and asked > 1:
                found.unrun += 1  # a worker was lost with each attempt; that it has failed is told to its on_complete
            elif begun[number] == 0:
                found.lose("run", {(AT_LEAST_ONCE[kind], number)})
            found.duplicates += max(0, begun[number] - asked)


async def _count_flows(found: Outcome, load: Load, backend: Backend, unrun: set[int]) -> None:
    """Count what runs of workflows left, but of those that lost five workers without getting on."""
    rows, ran = defaultdict[int, list[str]](list), defaultdict[int, list[str]](list)
    for number, what in await look(backend, "select number, what from flowed order by number, place"):
        rows[number].append(what)
    for moment, process, (number, *what) in lines(load, "flowed"):
        ran[int(number)].append(" ".join(what))
        if what[-1] == "again":  # one that was stopped as it began it goes on with it
            found.duplicates += (was_stopped := _was_stopped(load, process, moment))
            found.twice += not was_stopped
            found.examples += [] if was_stopped else [f"run {number}: {what[0]} ran though it was recorded"]
    for number in (one for one in jobs(load) if kind_of(one) == FLOW and one not in unrun):
        faults = faults_of(number, rows[number], ran[number])
        found.lose(f"run {number}:", faults["lost"])
        found.twice += len(faults["twice"])
        found.out_of_order += len(faults["out of order"])
        found.examples += [f"run {number}: {one}" for kind in ("twice", "out of order") for one in faults[kind]][
            :_EXAMPLES
        ]
    found.unrun += len(unrun)


def _count_messages(
    found: Outcome, what: str, wanted: set[tuple[int, int]], got: list[tuple[int, int]], *, exactly: bool = False
) -> None:
    """Compare what an outbox delivered with what was written: each writer has waited for its last write."""
    last: dict[int, int] = defaultdict(lambda: -1)
    seen = set[tuple[int, int]]()
    for writer, number in got:
        if (writer, number) in seen:
            found.twice += exactly
            found.duplicates += not exactly
            continue
        seen.add((writer, number))
        found.out_of_order += number < last[writer]
        last[writer] = max(last[writer], number)
    found.lose(what, wanted - seen)


def _count_answers(found: Outcome, load: Load) -> None:
    answers = [(int(words[0]), int(words[1])) for _, _, words in lines(load, "seen")]
    found.out_of_order += sum(count != states for count, states in answers)
    found.out_of_order += sum(one > after for (one, _), (after, _) in pairwise(answers))
    found.lose("last answer, not", {*answers[-1:]} ^ {(len(parcels(load)),) * 2})


def _over_limit(load: Load) -> list[tuple[str, int, float]]:
    """The actions that began beyond a limit: which, and how long after which fault.

    One that a killed or stopped process held has ended with it.
    """
    moves: dict[str, list[tuple[float, int]]] = defaultdict(list)
    running: dict[tuple[int, int], tuple[float, str]] = {}
    for moment, process, (what, number, step) in lines(load, "ran"):
        line = {"limited": "limited", "keyed": f"key {int(number) % KEYS}"}.get(what)
        if line is None:
            continue
        if step == "begins":
            moves[line].append((moment, 1))
            running[process, int(number)] = moment, line
        elif begun := running.pop((process, int(number)), None):
            moves[line].append((_stopped(load, process, begun[0], moment), -1))
    for (process, _), (began, held) in running.items():
        moves[held].append((load.deaths.get(process, began), -1))
    over = [(line, one) for line, steps in moves.items() for one in _beyond(steps, LIMIT if line == "limited" else 1)]
    ends = [0.0, *load.ends]
    faults = [(line, moment, bisect(ends, moment) - 1) for line, moment in over]
    return [(line, number, moment - ends[number]) for line, moment, number in faults]


def _beyond(steps: list[tuple[float, int]], limit: int) -> list[float]:
    count, over = 0, []
    for moment, step in sorted(steps):
        count += step
        if step > 0 and count > limit:
            over.append(moment)
    return over


def _stopped(load: Load, process: int, begun: float, ended: float) -> float:
    """When an action has ended: at the latest when its process was stopped meanwhile."""
    return min(
        (at for number, at, until in load.frozen if number == process and begun <= until and at <= ended), default=ended
    )


def _was_stopped(load: Load, process: int, moment: float) -> bool:
    """Whether a process was stopped shortly before."""
    return any(number == process and at <= moment <= until + LEASE for number, at, until in load.frozen)


def _recovery(load: Load) -> float:
    longest = 0.0
    for file in ("wrote", "ran", "sent"):
        moments = [moment for moment, _, _ in lines(load, file)]
        for end in load.ends:
            after = next((moment for moment in moments if moment > end), None)
            longest = max(longest, 0.0 if after is None else after - end)
    return longest


def _still(load: Load) -> dict[str, dict[str, float]]:
    """The longest gaps between two lines after each kind of takeover, until the next one or the last write."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    moments = {file: [moment for moment, _, _ in lines(load, file)] for file in ("wrote", "ran", "sent", "seen")}
    takeovers = [one for one in load.takeovers if one[1] < moments["wrote"][-1]]
    ends = [*(moment for _, moment in takeovers[1:]), moments["wrote"][-1]]
    for (what, begun), end in zip(takeovers, ends, strict=False):
        for file, known in moments.items():
            within = [begun, *(moment for moment in known if begun < moment < end), end]
            found[what][file] = max(found[what][file], *(after - one for one, after in pairwise(within)))
    return found
