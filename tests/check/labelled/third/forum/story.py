"""Tests are outside of functions: they may ask the clock, sleep, and run public functions."""

from datetime import datetime

import pytest

from forum.board import app, everything
from penstock.testing import TestApp


@pytest.fixture
async def backend():
    async with TestApp(app) as backend:
        yield backend


async def test_forgotten(backend: TestApp) -> None:
    backend.run_query(everything)  # expect: PEN001
    assert datetime.now().year > 2000
