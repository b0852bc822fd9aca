"""Stories are written with async def: each runs in an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from hypothesis import HealthCheck, Phase, settings


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


settings.register_profile(
    "story",
    deadline=None,
    database=None,
    derandomize=False,
    max_examples=300,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
