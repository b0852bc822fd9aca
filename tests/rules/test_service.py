"""A service outlives what its ticks raise, whatever that is, and looks again."""

from __future__ import annotations

import asyncio

import pytest
from stage.waits import SOON, events

from penstock.services.service import Service
from penstock.testing import TestClock


class Odd(BaseException):
    """What no program should raise."""


class Ticking(Service):
    """Raises an error in its first tick."""

    name = "ticking"

    def __init__(self, clock: TestClock, error: BaseException) -> None:
        super().__init__(clock)
        self.error: BaseException | None = error
        self.failed, self.ticked = asyncio.Event(), asyncio.Event()

    async def tick(self) -> float:
        error, self.error = self.error, None
        if error is not None:
            self.failed.set()
            raise error
        self.ticked.set()
        return 60.0


@pytest.mark.parametrize(
    "error", [ValueError("no"), Odd(), BaseExceptionGroup("two", [Odd()]), asyncio.CancelledError()]
)
async def test_a_service_outlives_every_error_of_a_tick(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    service = Ticking(TestClock(), error)
    service.start()
    await asyncio.wait_for(service.failed.wait(), SOON)
    service.wake.set()
    await asyncio.wait_for(service.ticked.wait(), SOON)
    await service.stop()
    (told,) = events(caplog, "ticking.tick_failed")
    assert type(error).__name__ in told["error"]


async def test_a_service_that_is_canceled_ends() -> None:
    service = Ticking(TestClock(), Odd())
    service.start()
    await asyncio.wait_for(service.failed.wait(), SOON)
    await service.kill()
    service.wake.set()
    assert not service.ticked.is_set()
