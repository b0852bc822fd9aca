"""Outboxes do what a few lines of Python say, whatever is written, fails, is skipped, is paused or dies."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage.needs import examples
from stage.outboxes import OutboxStage, aside, drain, outbox_row, text_of
from stage.stories import one_backend

from penstock import Retry, Table
from penstock.services.relay.relay import Relay
from penstock.testing import TestApp, raising

POLICIES = ("halt", "halt_key", "park")
LOST = timedelta(seconds=31)
SOON = timedelta(seconds=2)
numbers = itertools.count(1)


class Item(Table):
    note: str = ""
    lane: str = "a"


class Crash(BaseException):
    """What ends a relay in the middle of something."""


OPS = st.one_of(
    st.tuples(st.just("write"), st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["heal", "skip", "pause", "resume", "crash before", "crash after"]), st.none()),
)


@dataclass
class Model:
    """What is to be handed over, by one outbox.

    Attributes:
        policy: What becomes of messages that fail.
        written: All messages: the note, and its lane.
        bad: Those that fail.
        done: Those that are done with.
    """

    policy: str
    written: list[tuple[str, str]] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)

    def left(self) -> list[tuple[str, str]]:
        """What is not done with, in order."""
        return [one for one in self.written if one[0] not in self.skipped and one[0] not in self.done]

    def hand_over(self) -> None:
        """Hand over all that may be."""
        stopped: set[str] = set()
        for note, lane in self.left():
            held = {"halt": bool(stopped), "halt_key": lane in stopped, "park": False}[self.policy]
            if note in self.bad:
                stopped.add(lane)
            elif not held:
                self.done.append(note)

    def failed(self) -> list[str]:
        """Which have been tried, and failed."""
        found, lanes = list[str](), set[str]()
        for note, lane in self.left():
            if note in self.bad and (self.policy == "park" or lane not in lanes):
                found.append(note)
                lanes.add(lane)
        return found[:1] if self.policy == "halt" else found


class Story:
    """One example: the outboxes, and their models."""

    def __init__(self, stage: OutboxStage, test: TestApp, *, beside: bool) -> None:
        self.stage, self.test, self.beside = stage, test, beside
        self.models = [Model(policy) for policy in POLICIES]
        self.paused = self.crashed = False

    async def tell(self, ops: list[tuple[str, Any]]) -> None:
        """Do it all, and look at each step; in the end nothing is left."""
        for name, what in ops:
            await getattr(self, name.split()[0])(*([what] if what else []), *name.split()[1:])
            await self.look()
        if self.paused:
            await self.resume()
        await self.heal()
        await self.look()
        assert not any(model.left() for model in self.models)

    async def write(self, rows: list[tuple[str, bool]]) -> None:
        items = [Item(note=f"{next(numbers):05}", lane=lane) for lane, _ in rows]
        for model in self.models:
            model.written += [(item.note, item.lane) for item in items]
            model.bad |= {item.note for item, (_, bad) in zip(items, rows, strict=True) if bad}
        await self.stage.insert(self.test, *items)

    async def heal(self) -> None:
        for model in self.models:
            model.bad.clear()
            await self.test.engine.store.outboxes.retry(model.policy, self.test.clock.now())

    async def skip(self) -> None:
        for model in self.models:
            row, put = await outbox_row(self.test, model.policy), await aside(self.test, model.policy)
            failed = [one.change.seq for one in put if one.state != "waiting"]
            seqs = [row.trouble.seq] if row.trouble is not None else failed
            if model.failed() and not self.paused:
                assert seqs
                assert await self.test.engine.store.outboxes.skip(model.policy, seqs[0])
                model.skipped.add(model.failed()[0])

    async def pause(self) -> None:
        self.paused = True
        for model in self.models:
            await self.test.engine.store.outboxes.pause(model.policy, paused=True)

    async def resume(self) -> None:
        self.paused = False
        for model in self.models:
            await self.test.engine.store.outboxes.pause(model.policy, paused=False)

    async def crash(self, when: str) -> None:
        """Die around a commit, if there is one; another relay follows."""
        await self.write([("a", False)])
        if not self.paused:
            self.test.clock.advance(SOON)
            try:
                with raising("outbox.write" if self.beside else f"commit.{when}", Crash()):
                    await drain(self.test)
            except Crash:
                self.crashed = True
        self.test.relay = cast("Relay", self.test.make_service("relay"))
        self.test.clock.advance(LOST)

    async def look(self) -> None:
        """Hand over all that may be; it has to be what the models say."""
        for _ in range(3 + 3 * max(len(model.bad) for model in self.models)):
            await drain(self.test, SOON)
        for model in self.models:
            if not self.paused:
                model.hand_over()
            got = await self.got(model)
            if self.beside and model.policy == "halt":  # what was under way beside one that fails was handed over, too
                assert set(got) >= set(model.done), model
                assert not set(got) & model.bad, model
            else:
                assert sorted(got) == sorted(model.done), model
            lanes = dict(model.written)
            for lane in "abc":
                own = [note for note in got if lanes[note] == lane]
                assert own == sorted(own) or model.policy == "park", model
            if not self.paused and model.policy != "halt":
                put = await aside(self.test, model.policy)
                assert len([one for one in put if one.state != "waiting"]) == len(model.failed()), model

    async def got(self, model: Model) -> list[str]:
        """What was handed over by one outbox, in order; each once, unless a process died that could not write it."""
        known = {note for note, _ in model.written}
        if self.beside:
            found = [text_of(one) for one in self.stage.got if one.outbox == model.policy and text_of(one) in known]
            assert self.crashed or len(found) == len(set(found)), model
            return list(dict.fromkeys(found))
        return [text for text in (await self.stage.by_outbox(self.test)).get(model.policy, []) if text in known]


@pytest.mark.parametrize("beside", [False, True])
def test_outboxes_do_what_the_model_says(database_url: str, *, beside: bool) -> None:
    stage = OutboxStage(Item)
    story: list[Story] = []
    # One attempt more than failures take: after a crash, the next one counts twice for a message that it meets.
    policy = Retry.fixed(timedelta(seconds=1), max_attempts=3, jitter=0)
    for name in POLICIES:
        options: dict[str, Any] = {"parallelism": 2} if beside else {"mutation": True}
        stage.outbox(Item, name, start="end", on_failure=name, partition_by="lane", retry=policy, **options)

    def fails(message: Any) -> Exception | None:
        model = next(model for model in story[-1].models if model.policy == message.outbox)
        return ValueError("bad") if message.row.note in model.bad else None

    stage.fails = fails
    with one_backend(stage.app, database_url) as tell:

        @given(st.lists(OPS, min_size=2, max_size=7))
        @settings(max_examples=examples(12))
        def tells(ops: list[tuple[str, Any]]) -> None:
            async def run(test: TestApp) -> None:
                story.append(Story(stage, test, beside=beside))
                await story[-1].tell(ops)

            tell(run)

        tells()
