"""How often jobs ask whether the limit of their pool has changed, when the event loop lags."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from penstock.calls.run.jobrun import Permit, Withdrawn
from penstock.clock import SystemClock
from penstock.errors import DatabaseUnavailable


def permit(*answers: Any) -> tuple[Permit, AsyncMock]:
    """A permit of limit 1 that is never fresh, as each look at the clock is half a second later; and what it asks."""
    asked = AsyncMock(side_effect=answers)
    store = Mock(begin_read=AsyncMock(return_value=AsyncMock()))
    store.pools.epoch = asked
    clock = Mock()
    clock.monotonic.side_effect = (number * 0.5 for number in range(1000))
    return Permit(store, clock, "pool", 1, 0.0, lambda: True), asked


async def test_jobs_that_wait_for_an_answer_share_it() -> None:
    one, asked = permit(1, 1, DatabaseUnavailable("It is away."), 2)
    first, *others = [asyncio.create_task(one.check()) for _ in range(50)]
    await SystemClock().sleep(0)
    first.cancel()  # the others still get the answer
    assert await asyncio.gather(*others) == [None] * 49
    assert asked.await_count == 1
    await one.check()
    assert asked.await_count == 2, "an old answer is asked for again"
    ends = await asyncio.gather(*(one.check() for _ in range(50)), return_exceptions=True)
    assert {type(end) for end in ends} == {Withdrawn}
    with pytest.raises(Withdrawn):
        await one.check()
    assert asked.await_count == 4
