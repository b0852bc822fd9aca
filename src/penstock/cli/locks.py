"""``penstock locks``: lists locks with their holders and leases, and takes one away from its holder."""

from __future__ import annotations

from penstock.cli.operations import add_commands, list_command
from penstock.cli.output import readable_time
from penstock.operations import locks
from penstock.store.nouns.locks import LockRow


def _row(lock: LockRow) -> tuple[str, ...]:
    until = readable_time(lock.expires_at)
    return lock.key, str(lock.fence), lock.holder, readable_time(lock.taken_at), until, "yes" if lock.wanted else ""


command = list_command(locks.every, ("key", "fence", "holder", "taken", "runs out", "wanted"), _row)
add_commands(command, locks.release)
