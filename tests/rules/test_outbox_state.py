"""A relay's state and window in any order of events: nothing is lost, each key is in order, and no message comes twice.

Messages are read, delivered and fail; writes are lost, refused, or nobody knows of them; processes die and others take
the outbox; somebody pauses, skips, retries or rebuilds. After each write the stored cursor is enough to go on from.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.relaymodel import RETRY, RelayModel
from stage.needs import examples

from penstock.outbox.outbox import Outbox
from penstock.services.relay import state

USUAL = ("rest", "append", "tick", "begin", "end", "write", "read on", "close", "pass time")
RARE = (
    "fail", "heal", "truncate", "doubt", "be away", "crash", "lose lease", "cut and stop", "notice",
    "pause", "resume", "skip", "retry", "declare", "rebuild",
)  # fmt: skip
KEYS = "abc"


@dataclass
class Story:
    """One example: a relay, and what happens to it."""

    relay: RelayModel

    def happen(self, event: str, number: int) -> None:
        getattr(self, event.replace(" ", "_"))(number)

    def end_well(self) -> None:
        """Heal everything: what is left is delivered by itself, and what was parked once somebody retries it."""
        relay, store = self.relay, self.relay.store
        relay.bad.clear()
        relay.outcome = "known"
        self.resume(0)
        self.deliver_all()
        troubles = [store.row.trouble, *(one.trouble for one in store.aside.values() if one.state != "parked")]
        if all(one is None or one.retry_at is not None for one in troubles):
            assert {one.state for one in store.aside.values()} <= {"parked"}
            assert store.position.high == len(store.feed)
        store.retry()
        self.deliver_all()
        left = [one.seq for one in store.feed if store.is_pending(one.seq)]
        assert (left, store.aside, store.row.passed, store.row.trouble) == ([], {}, frozenset(), None)
        relay.account.check_store()
        if not relay.account.passed and not relay.account.begun:
            assert store.row.delivered == len(store.feed), "each counts once"

    def deliver_all(self) -> None:
        """Go on until nothing is left, or nothing moves any more."""
        relay, store = self.relay, self.relay.store
        for _ in range(20 * len(store.feed) + 100):
            if relay.window is None:
                if store.position.high == len(store.feed) and not store.aside:
                    break
                relay.now += timedelta(minutes=10)
                self.notice(0)
                self.tick(0)
            elif relay.may_start and len(relay.under_way) < relay.outbox.parallelism:
                relay.begin()
            elif relay.under_way:
                relay.end(0)
            else:
                self.write(0)
                self.write(0)
                self.read_on(0)
                self.close(0)

    # ----- events

    def rest(self, number: int) -> None:
        """Nothing happens: what a shorter example is filled with."""

    def append(self, number: int) -> None:
        self.relay.store.append(KEYS[number % len(KEYS)], "message")

    def truncate(self, number: int) -> None:
        if not self.relay.state.by_key:
            self.relay.store.append("", "truncate")

    def fail(self, number: int) -> None:
        """A message of those to come fails from now on."""
        self.relay.bad.add(self.relay.store.position.high + 1 + number)

    def heal(self, number: int) -> None:
        self.relay.bad.clear()

    def pass_time(self, number: int) -> None:
        self.relay.now += timedelta(seconds=3 * number)

    def tick(self, number: int) -> None:
        if self.relay.window is None:
            self.relay.tick()

    def begin(self, number: int) -> None:
        if self.relay.may_start and len(self.relay.under_way) < self.relay.outbox.parallelism:
            self.relay.begin()

    def end(self, number: int) -> None:
        if self.relay.under_way:
            self.relay.end(number % len(self.relay.under_way))

    def write(self, number: int) -> None:
        window = self.relay.window
        if self.relay.writing is not None:
            self.relay.end_write()
        elif window is not None and (self.relay.state.uncertain or not window.is_written):
            self.relay.begin_write()

    def read_on(self, number: int) -> None:
        if self.relay.window is not None and self.relay.under_way and self.relay.writing is None:
            self.relay.read_on()

    def close(self, number: int) -> None:
        if self.relay.may_close:
            self.relay.close()

    def doubt(self, number: int) -> None:
        self.relay.outcome = "unknown"

    def be_away(self, number: int) -> None:
        self.relay.outcome = "away"

    def crash(self, number: int) -> None:
        self.relay.crash()

    def lose_lease(self, number: int) -> None:
        self.relay.lose_lease()

    def cut_and_stop(self, number: int) -> None:
        self.relay.stop()

    def notice(self, number: int) -> None:
        """The relay sees that others have changed the outbox."""
        state = self.relay.state
        if self.relay.window is None and state.row is not None and state.row.epoch != self.relay.store.row.epoch:
            self.relay.state = state.forget()

    def pause(self, number: int) -> None:
        self.relay.store.change(paused=True)

    def resume(self, number: int) -> None:
        if self.relay.store.row.paused:
            self.relay.store.change(paused=False)

    def skip(self, number: int) -> None:
        if (seq := self.relay.store.skip()) is not None:
            self.relay.account.passed.add(seq)

    def retry(self, number: int) -> None:
        self.relay.store.retry()

    def declare(self, number: int) -> None:
        """Another release declares it, with another filter."""
        self.relay.store.change()

    def rebuild(self, number: int) -> None:
        self.relay.store.begin_again()
        self.relay.account.begin_again()


EVENTS = st.tuples(st.sampled_from(USUAL * 9 + RARE), st.integers(0, 5))


@pytest.mark.parametrize("policy", ["halt", "halt_key", "park"])
@pytest.mark.parametrize("kind", ["one by one", "parallel", "batches", "mutation", "mutation in batches"])
def test_nothing_is_lost_out_of_order_or_twice_whatever_happens(kind: str, policy: Any) -> None:
    outbox = Outbox(
        name="send",
        topic="t",
        on_failure=policy,
        retry=RETRY,
        parallelism=3 if kind == "parallel" else 1,
        batch=2 if "batches" in kind else None,
    )

    @given(st.lists(EVENTS, min_size=60, max_size=120))
    @settings(max_examples=examples(180))
    def happens(events: list[tuple[str, int]]) -> None:
        story = Story(RelayModel(outbox, in_transaction="mutation" in kind))
        for number in range(4):
            story.append(number)
        for event, number in events:
            story.happen(event, number)
        story.end_well()

    happens()


def test_an_uncertain_write_is_no_death_of_a_process() -> None:
    outbox = Outbox(name="send", topic="t", on_failure="park", retry=RETRY)
    story = Story(RelayModel(outbox, in_transaction=False))
    relay = story.relay
    relay.store.append("a", "message")
    relay.tick()
    relay.begin()
    relay.crash()
    relay.tick()  # notes that it tries the message of which a process has died
    relay.cut()
    relay.state = replace(relay.state, uncertain=True)
    story.deliver_all()
    assert (relay.account.delivered[1], relay.store.aside) == (1, {})


def test_nothing_is_awaited_between_reading_the_state_and_changing_it() -> None:
    """A worker may change the state meanwhile, and that would be lost."""
    waits = [
        f"{path.name}:{node.lineno}"
        for path in Path(state.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Assign) and "state" in {getattr(one, "attr", "") for one in ast.walk(node.targets[0])}
        if any(isinstance(one, ast.Await) for one in ast.walk(node.value))
    ]
    assert waits == []
