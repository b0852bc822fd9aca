"""A message that has failed: its attempts, its error, and the time of its retry.

Owns the decision after a failed attempt. Leaves writing it to the store.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import datetime, timedelta

from penstock.changes.change import CapturedChange
from penstock.dataclass import dataclass
from penstock.errors import DeclarationError, NonRetryableError, Snooze, WorkerLost
from penstock.jobs.retry import Retry, wait_after
from penstock.observe.errortext import error_text, message_of, trace_text
from penstock.values import storable

Noted = tuple[int, datetime]  # how often something was noted, and when first

_LONGEST_ERROR = 10_000
_SECOND, _MINUTE, _LONGEST_HALT = timedelta(seconds=1), timedelta(minutes=1), timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A message that has failed, or a fault that halts the whole outbox."""

    seq: int  # its number; 0 if it is the outbox itself that waits for somebody to look after it
    attempts: int  # how many attempts have failed
    since: datetime  # when the first one failed
    retry_at: datetime | None  # when it is tried again; None if not by itself
    error: str  # the error of the last one
    traceback: str | None = None  # its traceback
    halted: bool = False  # whether its attempts are used up. It may be tried again all the same
    key: str | None = None  # the key of its row, or of the message
    left: str | None = None  # the rest of the backfill once it is passed by, if it is an older row
    deaths: int = 0  # how many processes in a row have died while they handed it over

    def text(self) -> str:
        said = asdict(self)
        said |= {"since": self.since.isoformat(), "retry_at": self.retry_at and self.retry_at.isoformat()}
        return json.dumps(said)

    @classmethod
    def parse(cls, text: str) -> Trouble:
        said = json.loads(text)
        said["since"] = datetime.fromisoformat(said["since"])
        said["retry_at"] = None if said["retry_at"] is None else datetime.fromisoformat(said["retry_at"])
        return cls(**said)

    def is_of(self, change: CapturedChange) -> bool:
        """Whether it is this message. Numbers of older rows are counts, so their key decides."""
        return self.seq == change.seq and (self.seq > 0 or self.key == change.key)

    def due(self, now: datetime) -> bool:
        return self.retry_at is not None and self.retry_at <= now


def reader_lost(outbox: str, now: datetime) -> Trouble:
    """The state of an outbox whose reader is gone: the feed has kept nothing for it since."""
    return Trouble(
        seq=0,
        attempts=0,
        since=now,
        retry_at=None,
        error=f"ReaderLost: the reader of outbox {outbox} is gone from the change feed, which has kept nothing for it "
        "since. Rebuild it, or move it; or retry it, and it goes on with what is written from now on.",
        halted=True,
    )


def changes_lost(outbox: str, source: str, change: CapturedChange, noted: Noted, last_at: datetime | None) -> Exception:
    """The error of a message for changes that could not be captured: `noted` so often, after delivery at `last_at`."""
    number, since = noted
    at = change.changed_at.isoformat(timespec="milliseconds")
    when = (
        f"once, at {at}" if number == 1 else f"{number} times, from {since.isoformat(timespec='milliseconds')} to {at}"
    )
    last = ""
    if last_at is not None:
        last = f" The last message before was handed over at {last_at.isoformat(timespec='milliseconds')}."
    return NonRetryableError(
        f"ChangesLost: changes of table {source} could not be captured: a column is gone or has another name, or a "
        f"trigger was missing for a while. That was noted {when}.{last} Send rows again with penstock outbox resend "
        f"{outbox} --where …, then pass this message by with penstock outbox skip {outbox} {change.seq} --reason …"
    )


def after_failure(
    policy: Retry, seq: int, known: Trouble | None, error: BaseException, now: datetime, chance: float
) -> Trouble:
    """The state of a message after a failed attempt.

    After the last attempt it is halted, and retried after waits that grow to minutes. NonRetryableError halts for good.
    """
    before, since, deaths = (0, now, 0) if known is None else (known.attempts, known.since, known.deaths)
    if isinstance(error, Snooze):  # it asked for that, and has not failed
        text = storable(f"Snooze: {message_of(error)}"[:_LONGEST_ERROR])
        return Trouble(seq=seq, attempts=before, since=since, retry_at=now + error.wait(now), error=text)
    attempts = before + 1
    trouble = Trouble(
        seq=seq,
        attempts=attempts,
        since=since,
        retry_at=None,
        error=storable(error_text(error)[:_LONGEST_ERROR]),
        traceback=storable(trace_text(error)[-_LONGEST_ERROR:]),
        halted=isinstance(error, NonRetryableError),
        deaths=deaths + 1 if isinstance(error, WorkerLost) else 0,
    )
    if trouble.halted:
        return trouble
    wait_again = wait_after(policy, attempts, trouble.since, now, chance)
    if wait_again is None:
        # About as long again as it has failed already, so each wait is about twice the one before.
        again = max(_SECOND, min(now - trouble.since, _LONGEST_HALT) * (0.5 + chance / 2))
        wait_again = max(_longest(policy, attempts, now, chance), again)
        return replace(trouble, halted=True, retry_at=now + wait_again)
    return replace(trouble, retry_at=now + wait_again)


def _longest(policy: Retry, attempts: int, now: datetime, chance: float) -> timedelta:
    """The wait after the last attempt of a policy: a halted message is retried no sooner."""
    last = attempts if policy.max_attempts is None else min(attempts, policy.max_attempts)
    try:
        wait = policy.waits.after(last, now, chance)
    except DeclarationError:  # a cron expression that is due no more
        return _MINUTE
    return wait if policy.max_duration is None else min(wait, policy.max_duration)
