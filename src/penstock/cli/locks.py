"""``penstock locks``: lists locks with their holders and leases, and takes one away from its holder."""

from __future__ import annotations

import click

from penstock.app import Backend
from penstock.cli.opening import snapshot, with_backend
from penstock.cli.options import Options, listing, pass_options
from penstock.cli.output import print_list, readable_time, say
from penstock.errors import LockLost
from penstock.store.nouns.locks import LockRow


@listing("locks")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many locks to list.")
def command(options: Options, limit: int) -> None:
    """Show locks that are held or have expired, the oldest first."""
    locks = with_backend(options, lambda backend: _look(backend, limit))
    headers = ("key", "fence", "holder", "taken", "runs out", "wanted")
    print_list("locks", locks, headers, _row, as_json=options.json)


@command.command("release")
@click.argument("key")
@click.option("--fence", type=click.IntRange(1), required=True, help="The holder's fencing token, from penstock locks.")
@pass_options
def release(options: Options, key: str, fence: int) -> None:
    """Take a lock from its holder. The holder learns of it within a third of its lease."""
    with_backend(options, lambda backend: _release(backend, key, fence))
    say(f"{key} is free.")


async def _look(backend: Backend, limit: int) -> list[LockRow]:
    store = backend.engine.store
    async with snapshot(backend) as session:
        return await store.locks.list(session, limit)


async def _release(backend: Backend, key: str, fence: int) -> None:
    store = backend.engine.store
    if await store.locks.release(key, fence) is None:
        raise LockLost(f"The lock {key!r} does not have the holder {fence} any more.", fix="Look at penstock locks.")
    store.signals.notify()


def _row(lock: LockRow) -> tuple[str, ...]:
    until = readable_time(lock.expires_at)
    return lock.key, str(lock.fence), lock.holder, readable_time(lock.taken_at), until, "yes" if lock.wanted else ""
