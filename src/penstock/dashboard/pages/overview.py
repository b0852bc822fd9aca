"""Overview: what runs, waits and fails, and what needs a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import quote_plus

from penstock.api.outbox.views import OutboxStatus, look_at
from penstock.api.pools.activity import MOST_COUNTED, Look, PoolNow
from penstock.dashboard.activity import totals_of
from penstock.dashboard.charts import charts_of
from penstock.dashboard.page import Page, View
from penstock.dashboard.pages.functions import failing
from penstock.dashboard.pages.tasks import tasks_now
from penstock.dataclass import dataclass
from penstock.observe.readable import amount, span
from penstock.observe.timing import percentiles
from penstock.store.nouns.leases import list_unserved

_WINDOW = timedelta(minutes=5)  # in which the calls behind the latency were made
_LATE = 60.0  # seconds that a job may wait before somebody should look
_some = partial(amount, most=MOST_COUNTED)


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a person should look at."""

    what: str
    where: str  # its page
    bad: bool = True


async def _load(view: View) -> Mapping[str, Any]:
    store, calls = view.backend.engine.store, view.backend.job_calls
    seen, pools = await view.activity.look()
    rows = await store.outboxes.list()
    outboxes = await look_at(store, rows, calls.now(), view.backend.app.outboxes.find, MOST_COUNTED)
    durations = Counter[str]()
    for name, found in (await view.activity.sums(_WINDOW)).items():
        durations.update(found if name.startswith("function ") else {})
    unserved = list_unserved(seen.workers, view.backend.app.work(), seen.now)
    needs = [Need(f"No worker that is running runs {noun} {name}.", "/health") for noun, name in unserved]
    needs += [*_of_pools(seen, pools), *_of_outboxes(outboxes)]
    failed = await calls.read(lambda session: store.jobs.count_failed(session, calls.now(), MOST_COUNTED))
    if failed:
        needs.append(Need(f"{_some(failed, 'job')} failed for good and can be retried.", "/work?state=failed"))
    for one in (task for task in await tasks_now(view) if task.failed):
        where = f"/tasks/task?task={quote_plus(one.name)}&state=failed"
        needs.append(Need(f"Reactive task {one.name}: {_some(one.failed, 'row')} failed.", where))
    return {
        "seen": seen,
        "pools": pools,
        "most": MOST_COUNTED,
        "totals": totals_of(pools),
        "latency": percentiles(durations, 0.5, 0.95),
        "needs": needs,
        "failing": await failing(view),
        "charts": await charts_of(view, ("jobs", "job"), ("calls", "call")),
    }


def _of_pools(seen: Look, pools: Sequence[PoolNow]) -> Iterator[Need]:
    if not seen.workers:
        yield Need("No worker runs. Start one with: penstock worker", "/work")
    for one in pools:
        queue = f"{_some(one.ready, 'job')} in its queue."
        if one.paused:
            yield Need(f"Pool {one.name} is paused; {queue}", "/work", bad=False)
        elif one.limit == 0:
            yield Need(f"Pool {one.name} has the limit 0; {queue}", "/work", bad=False)
        elif one.waits is not None and one.waits > _LATE:
            where = f"/work?pool={quote_plus(one.name)}&state=pending"
            yield Need(f"Pool {one.name}: a job has waited for {span(one.waits)}.", where)


def _of_outboxes(outboxes: Sequence[OutboxStatus]) -> Iterator[Need]:
    for one in outboxes:
        where = f"/outboxes/outbox?outbox={quote_plus(one.name)}"
        if one.halted:
            yield Need(f"Outbox {one.name} is halted: {one.error or 'a message failed'}", where)
        elif one.paused:
            queue = f"{_some(one.messages, 'message')} in its queue."
            yield Need(f"Outbox {one.name} is paused; {queue}", where, bad=False)
        if one.parked:
            yield Need(f"Outbox {one.name}: {_some(one.parked, 'message')} parked.", where)


PAGES = (Page("/", "Overview", "overview.html", _load, {}),)
