"""Changes of the limits of pools while programs run, by whoever asks: a program, or the command line."""

from __future__ import annotations

from penstock.calls.jobs.permit import NONE_HOLDS_AFTER
from penstock.calls.run.engine import Engine
from penstock.errors import DataError
from penstock.pools.pool import check_max_parallelism


async def change_pool(
    engine: Engine, name: str, *, max_parallelism: int | None = None, paused: bool | None = None
) -> None:
    """Change the limit of a pool, or pause it, on all machines at once; nothing starts beyond it once this returns.

    Raises:
        DeclarationError: The limit is no whole number from 0 to a million.
        DataError: The database knows no such pool.
    """
    if max_parallelism is not None:
        check_max_parallelism(name, max_parallelism)
    if not await engine.store.pools.change(name, max_parallelism=max_parallelism, paused=paused):
        raise DataError(f"The database knows no pool {name!r}.", fix="Start the program that declares it once.")
    engine.store.signals.notify()
    if max_parallelism is not None or paused:
        await engine.machine.sleep(NONE_HOLDS_AFTER)
