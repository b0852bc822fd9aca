"""Local times: what a clock at a place shows, when clocks are set as well, as crons have it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ActionCtx, App, DeclarationError, LocalTime, ValueInvalid
from penstock.crons.schedule import CronExpression
from penstock.testing import TestApp

app = App()
pool = app.workpool("at")
wall = datetime.fromisoformat
PLACES = ("Europe/Prague", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC")


@app.internal_action
async def act(ctx: ActionCtx) -> None: ...


@pytest.mark.parametrize(
    ("shown", "instant"),
    [
        ("2026-01-15T09:00", "2026-01-15T08:00Z"),
        ("2026-07-15T09:00", "2026-07-15T07:00Z"),
        ("2026-03-29T02:30", "2026-03-29T01:00Z"),  # clocks jump over it
        ("2026-10-25T02:30", "2026-10-25T00:30Z"),  # it comes twice
    ],
)
def test_a_local_time_follows_its_zone(shown: str, instant: str) -> None:
    assert LocalTime(wall(shown), "Europe/Prague").instant == datetime.fromisoformat(instant)


WALLS = st.datetimes(wall("1990-01-01"), wall("2060-01-01")).map(lambda one: one.replace(second=0, microsecond=0))


@given(WALLS, st.sampled_from(PLACES))
def test_it_is_when_a_cron_of_that_time_runs(shown: datetime, place: str) -> None:
    local = LocalTime(shown, place)
    cron = CronExpression(f"{shown.minute} {shown.hour} {shown.day} {shown.month} *", place)
    assert cron.next(local.instant - timedelta(hours=12)) == local.instant
    assert local.instant.astimezone(ZoneInfo(place)).replace(tzinfo=None) >= shown, (
        "never earlier than the clock shows it"
    )


@pytest.mark.parametrize(
    ("time", "place", "words"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), "UTC", "without a time zone"),
        ("2026-01-01", "UTC", "without a time zone"),
        (wall("2026-01-01"), "Europe/Praha", "Did you mean 'Europe/Prague'"),
        (wall("2026-01-01"), UTC, "given by its name"),
    ],
)
def test_what_is_no_local_time_is_refused(time: Any, place: Any, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        LocalTime(time, place)


async def test_jobs_run_at_a_local_time() -> None:
    async with TestApp(app) as backend:
        nine = (backend.clock.now() + timedelta(days=200)).replace(
            hour=9, minute=0, second=0, microsecond=0, tzinfo=None
        )
        local = LocalTime(nine, "America/New_York")
        jobs = [
            await backend.scheduler.run_at(local, act),
            await pool.with_options(run_at=local).enqueue(backend, act),
        ]
        for job in jobs:
            status = await backend.job(job)
            assert status is not None
            assert status.run_at == local.instant
        past = await backend.scheduler.run_at(LocalTime(wall("2000-01-01"), "UTC"), act)
        assert (await backend.job(past)).run_at == backend.clock.now()  # type: ignore[union-attr]
        for refused in (LocalTime(nine.replace(year=nine.year + 6), "UTC"), nine):
            with pytest.raises(ValueInvalid):
                await backend.scheduler.run_at(refused, act)
