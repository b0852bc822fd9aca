"""Tests are outside of functions: they may ask the clock, sleep, and run public functions."""

import asyncio
import random
import time
from datetime import datetime, timedelta

import pytest

from forum.board import Entry, Topic, app, close, everything, like, post, set_text, topics
from penstock import MutationCtx
from penstock.testing import TestApp


@pytest.fixture
async def backend():
    async with TestApp(app) as backend:
        yield backend


async def test_posting(backend) -> None:
    ada = backend.with_identity(subject="ada", issuer="https://example.com")
    begun = time.monotonic()
    topic = await backend.run_mutation(set_up)
    entry = await ada.run_mutation(post, topic, str(random.random()))
    await ada.run_mutation(like, entry)
    await ada.run_mutation(like, entry)
    await backend.run_until_idle()
    assert len(await backend.run_query(everything)) == 1
    assert time.monotonic() - begun < 5


async def test_many(backend) -> None:
    topic = await backend.run_mutation(set_up)
    for text in ["a", "b"]:
        await backend.run_mutation(set_text, topic, text)
    await asyncio.sleep(0)
    await backend.scheduler.run_after(timedelta(0), close, topic)
    backend.clock.advance(timedelta(days=1))
    assert await backend.run_query(topics, "a") == []


async def test_forgotten(backend: TestApp) -> None:
    backend.run_query(everything)  # expect: PEN001
    assert datetime.now().year > 2000


@app.internal_mutation
async def set_up(ctx: MutationCtx) -> str:
    topic = await ctx.db.insert(Topic(title="t", tag="a"))
    await ctx.db.insert(Entry(topic=topic, author="ada", text=""))
    return topic


class Scheduler:
    def run_after(self, delay: int, job: object) -> None:
        print(delay, job)


class NotADatabase:
    def __init__(self) -> None:
        self.db = {"get": 1}
        self.scheduler = Scheduler()

    def get(self) -> int:
        return self.db.get("get", 0)

    def later(self) -> None:
        self.scheduler.run_after(5, self.get)
        self.collect()

    def collect(self) -> list[int]:
        return [row for row in self.db.values() if row == 1]


def test_not_a_database() -> None:
    other = NotADatabase()
    other.later()
    assert other.get() == 1
