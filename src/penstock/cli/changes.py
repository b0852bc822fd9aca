"""``penstock changes``: the readers of the change feed and their backlogs, the interests, and the feed's size."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from penstock.app import Backend
from penstock.changes.lag import ReaderLag
from penstock.changes.position import BEGINNING
from penstock.cli.confirm import confirm
from penstock.cli.opening import snapshot, with_backend
from penstock.cli.options import Options, listing, pass_options
from penstock.cli.output import print_json, print_list, readable_time, say
from penstock.dataclass import dataclass
from penstock.errors import DataError
from penstock.observe.readable import amount, cap, size_of, span
from penstock.outbox.outbox import outbox_read
from penstock.store.nouns.changes import FeedSeen, ReaderRow, see_feed
from penstock.store.nouns.interests import InterestRow

_MOST = 10_000  # changes counted of each reader


@dataclass(frozen=True, slots=True)
class _Look:
    now: datetime
    feed: FeedSeen
    interests: list[InterestRow]
    workers: dict[int, str]

    def worker(self, row: ReaderRow) -> str | None:
        return None if row.lease is None else self.workers.get(row.lease)


@listing("changes")
def command(options: Options) -> None:
    """Show the readers of the change feed, the captured interests, and the feed's size.

    Counts up to 10,000 unread changes per reader.
    """
    look = with_backend(options, _look)
    if options.json:
        print_json(_as_data(look))
    else:
        _show(look)


@command.command("drop")
@click.argument("reader")
@click.option("--yes", "-y", is_flag=True, help="Do not ask first.")
@pass_options
def drop(options: Options, reader: str, yes: bool) -> None:
    """Remove a reader that nobody needs. The feed then keeps no changes for it."""
    with_backend(options, lambda backend: _drop(backend, reader, sure=yes))
    say(f"{reader} is dropped. The pruner soon deletes changes that no other reader needs.")


@command.command("empty")
@pass_options
def empty(options: Options) -> None:
    """Drop now what all readers have read, such as the values of an erased row. The pruner does it within the hour.

    Fails if changes stay: a reader or an outbox keeps them, a live query for a minute, or an open transaction.
    """
    with_backend(options, _empty)
    say("The feed has dropped all changes.")


# ----- steps


async def _look(backend: Backend) -> _Look:
    store = backend.engine.store
    async with snapshot(backend) as session:
        workers = {one.lease: one.holder for one in await store.leases.list(session)}
    feed = await see_feed(store.changes, _MOST)
    return _Look(backend.engine.clock.now(), feed, await store.interests.list(), workers)


async def _drop(backend: Backend, name: str, *, sure: bool) -> None:
    look = await _look(backend)
    known = {row.name: (row, standing) for row, standing in look.feed.readers}
    outbox = outbox_read(name)
    if outbox is not None and any(one.plan.name == outbox for one in await backend.engine.store.outboxes.list()):
        raise DataError(
            f"{name} is the reader of outbox {outbox}, which would lose messages without it.",
            fix=f"Drop the outbox: penstock outbox drop {outbox}",
        )
    if name not in known:
        raise DataError(f"There is no reader {name!r}.", fix="See penstock changes.")
    row, standing = known.pop(name)
    others = max((other.rows for _row, other in known.values()), default=0)
    _tell(look, row, standing, others)
    confirm(f"Drop {name}?", sure=sure)
    await backend.engine.store.changes.forget(name)


async def _empty(backend: Backend) -> None:
    changes, clock, turned = backend.engine.store.changes, backend.engine.clock, False
    async with snapshot(backend) as session:
        end = await changes.end(session)
    while True:
        done = await changes.rotate(clock.now(), _MOST, early=not turned)
        turned = turned or done.moved
        if not done.moved and done.emptied < _MOST:
            break
    every, new = await changes.lag(BEGINNING, _MOST), await changes.lag(end, _MOST)
    if every.oldest_at is not None and (every.rows > new.rows or every.rows == _MOST):
        raise DataError(
            f"The feed still keeps {amount(every.rows, 'change', most=_MOST)}, the oldest of "
            f"{readable_time(every.oldest_at)}: a reader, an outbox, a live query or an open transaction needs them.",
            fix="Run it again in a minute. Readers that are behind are in: penstock changes",
        )


def _tell(look: _Look, row: ReaderRow, standing: ReaderLag, others: int) -> None:
    alone = max(0, standing.rows - others)
    say(
        f"{row.name} has {amount(standing.rows, 'change', most=_MOST)} unread, and will never read them. "
        f"About {amount(alone, 'change', most=_MOST)} of them are kept for it alone; "
        f"the feed takes {size_of(look.feed.size)}."
    )
    worker = look.worker(row)
    if worker is not None:
        say(f"{worker} reads it now, and will lose it.")


# ----- how it looks


def _show(look: _Look) -> None:
    headers = ("reader", "unread", "behind", "moved", "read by")
    readers = [_reader(look, *one) for one in look.feed.readers]
    print_list("readers", readers, headers, tuple, as_json=False, right=headers[1:3])
    click.echo()
    interests = [(one.interest.name, one.interest.table, one.state) for one in look.interests]
    print_list("interests", interests, ("interest", "table", "state"), tuple, as_json=False)
    click.echo()
    oldest = look.feed.oldest_transaction
    click.echo(f"The feed takes {size_of(look.feed.size)}.")
    if oldest is not None:
        click.echo(f"The oldest transaction has been open for {span(oldest)}.")


def _reader(look: _Look, row: ReaderRow, standing: ReaderLag) -> tuple[str, ...]:
    behind = span(standing.age(look.now)) if standing.rows else "-"
    return row.name, cap(standing.rows, _MOST), behind, readable_time(row.moved_at), look.worker(row) or "nobody"


def _as_data(look: _Look) -> dict[str, Any]:
    oldest = look.feed.oldest_transaction
    return {
        "readers": [
            {
                "name": row.name,
                "rows": standing.rows,
                "seconds": standing.age(look.now).total_seconds(),
                "moved_at": row.moved_at,
                "lease": row.lease,
                "worker": look.worker(row),
            }
            for row, standing in look.feed.readers
        ],
        "interests": [
            {
                "id": one.id,
                "name": one.interest.name,
                "table": one.interest.table,
                "state": one.state,
                "declared_at": one.declared_at,
            }
            for one in look.interests
        ],
        "bytes": look.feed.size,
        "oldest_transaction_seconds": None if oldest is None else oldest.total_seconds(),
    }
