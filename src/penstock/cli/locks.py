"""``penstock locks``: lists locks with their holders and leases, and takes one away from its holder."""

from __future__ import annotations

from typing import Any

from penstock.cli.opening import with_backend
from penstock.cli.operations import add_commands, listing_of
from penstock.cli.options import Options
from penstock.cli.output import print_list, readable_time
from penstock.operations import locks
from penstock.store.nouns.locks import LockRow


@listing_of(locks.LIST)
def command(options: Options, /, **given: Any) -> None:
    found = with_backend(options, lambda backend: locks.LIST.run(backend, given))["locks"]
    headers = ("key", "fence", "holder", "taken", "runs out", "wanted")
    print_list("locks", found, headers, _row, as_json=options.json)


def _row(lock: LockRow) -> tuple[str, ...]:
    until = readable_time(lock.expires_at)
    return lock.key, str(lock.fence), lock.holder, readable_time(lock.taken_at), until, "yes" if lock.wanted else ""


add_commands(command, locks.RELEASE)
