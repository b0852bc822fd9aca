"""A read model that is made anew on the command line, beside processes that hand over, some of which are killed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stage import projection
from stage.outboxes import outbox_row
from stage.processes import Command
from stage.waits import until

from penstock.app import Backend

LEASE = "1"
ENTRIES = 600


async def is_right(backend: Backend) -> bool:
    """Whether the read model tells what the entries do, and nothing is left of older rows."""
    same = await backend.run_query(projection.balances) == await backend.run_query(projection.sums)
    return same and (await outbox_row(backend, "balances")).backfill is None


async def test_a_rebuild_that_is_killed_has_not_happened_and_one_that_is_not_is_right_in_the_end(
    database_url: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:

        def command(*words: str, **environment: str) -> Command:
            made = Command("stage.projection", database_url, *words, PENSTOCK_LEASE=LEASE, **environment)
            stack.callback(made.close)
            return made

        async with projection.app.open(database_url, lease=float(LEASE)) as backend:

            async def enter(first: int, last: int) -> None:
                for start in range(first, last, 50):
                    await backend.run_mutation(projection.enter, start, start + 50)

            async def counted() -> int:
                return sum(number for _, number in (await backend.run_query(projection.balances)).values())

            async def begun(count: int, most: int) -> bool:
                return count <= await counted() < most

            await enter(0, ENTRIES)
            workers = [command("worker"), command("worker")]
            await until(lambda: is_right(backend))
            # Killed in the middle: nothing has happened, and whoever hands over goes on.
            await backend.run_mutation(projection.spoil)
            before: dict[str, Any] = await backend.run_query(projection.balances)
            killed = command("outbox", "rebuild", "balances", "--yes", HELD_UNTIL=str(tmp_path / "never"))
            killed.expect("held")
            killed.kill()
            assert await backend.run_query(projection.balances) == before
            await enter(ENTRIES, ENTRIES + 50)
            await until(lambda: begun(ENTRIES + 50, ENTRIES + 51))
            assert not await is_right(backend), "it is as wrong as it was"
            # Once more, and who hands over is killed while it is made.
            done = command("outbox", "rebuild", "balances", "--yes")
            assert done.wait() == 0
            await until(lambda: begun(1, ENTRIES + 51))
            workers[0].kill()
            await enter(ENTRIES + 50, ENTRIES + 150)
            workers[1].kill()
            command("worker")
            await until(lambda: is_right(backend))
            assert await counted() == ENTRIES + 150, "each entry once"
