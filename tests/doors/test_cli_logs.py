"""``penstock logs``: the events of all processes, and new ones as they come."""

from __future__ import annotations

import json
import logging
import signal
from datetime import UTC, datetime, timedelta
from uuid import UUID

from doors.cli_fixtures import Console
from doors.test_cli_looks import on_store

from penstock.cli.logs import _WINDOW, _find_new
from penstock.clock import layout_uuid7
from penstock.observe.logbook import LogEvent

BEGAN = datetime(2026, 11, 30, 9, tzinfo=UTC)


def event(number: int, name: str = "job.failed", function: str = "mail:send", level: int = logging.WARNING) -> LogEvent:
    at = BEGAN + timedelta(seconds=number)
    facts = {"function": function, "error": f"error {number}\x1b[1m"}
    return LogEvent(UUID(int=layout_uuid7(int(at.timestamp() * 1000), 1)), at, level, name, function, " job_1 ", facts)


def test_logs_are_listed_oldest_first_and_by_what_is_asked_for(shell: Console, database_url: str) -> None:
    shell.write_bookings()
    shell.ok("migrate")
    events = [event(1), event(2, "worker.started", "", logging.INFO), event(3, function="mail:fetch")]
    events.append(LogEvent(UUID(int=events[0].id.int + 1), BEGAN, 1, "function.ran", "mail:send", "", {}))
    on_store(database_url, lambda store: store.logbook.write(BEGAN, {}, events))
    lines = shell.ok("logs", "--limit", "2").out.splitlines()
    assert [line[:21] for line in lines] == ["2026-11-30 09:00:02Z ", "2026-11-30 09:00:03Z "]
    assert lines[1].endswith("warning job.failed function=mail:fetch error=error 3␛[1m")
    for words, numbers in (
        ((), [1, 2, 3]),
        (("--function", "send"), [1]),
        (("--event", "job."), [1, 3]),
        (("--level", "warning"), [1, 3]),
        (("--job", "job_1", "--event", "worker"), [2]),
        (("--job", "job_2"), []),
    ):
        found = [json.loads(line) for line in shell.ok("logs", "--json", *words).out.splitlines()]
        assert [one["error"].split("\x1b")[0] for one in found] == [f"error {number}" for number in numbers], words
        assert all({"at", "level", "event"} <= one.keys() for one in found)


def test_new_events_follow(shell: Console, database_url: str) -> None:
    shell.write_bookings()
    shell.ok("migrate")
    on_store(database_url, lambda store: store.logbook.write(BEGAN, {}, [event(1), event(5)]))
    with shell.start("logs", "--follow", "--function", "send", "--limit", "1", PYTHONUNBUFFERED="1") as process:
        process.wait_for("error 5")
        late = [event(3), event(7), event(8, function="mail:fetch"), event(9)]
        on_store(database_url, lambda store: store.logbook.write(BEGAN, {}, late))
        process.wait_for("error 9")
        process.tell(signal.SIGINT)
        assert process.end() == 130
        said = [line.split("error=error ")[1][0] for line in process.lines if "error=error" in line]
    assert said == ["5", "3", "7", "9"], "one that another process wrote late comes too, and none twice"


def test_what_left_the_window_does_not_come_back() -> None:
    events = [event(number) for number in range(_WINDOW + 2)][::-1]
    assert _find_new(events[1:_WINDOW], []) == events[1:_WINDOW]
    assert _find_new(events[:_WINDOW], events[2:]) == events[:2]
    assert _find_new(events[2:], events[:_WINDOW]) == [], "the newest were forgotten meanwhile"
