"""The lines of `penstock dev`: what they say of runs, what they leave out, and how they fit a terminal."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock import AccessDenied, ApplicationError
from penstock.cli.dev import links
from penstock.cli.devlog import DevFormatter, schema_summary
from penstock.observe.logs import event

LONG = "order_01jd3k4v5w6x7y8z9a0b1c2d3e"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Emits events; what is shown of them."""
    monkeypatch.setenv("COLUMNS", "80")
    formatter, logger = DevFormatter(verbose=False), logging.getLogger("penstock")
    shown: list[str] = []

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            shown.extend(line[9:] for line in formatter.format(record).splitlines())

    handler, level = Shown(), logger.level
    handler.addFilter(formatter.filter)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield shown
    logger.removeHandler(handler)
    logger.setLevel(level)


def ran(name: str = "call.ran", error: Exception | None = None, **facts: Any) -> None:
    usual = {"kind": "mutation", "function": "shop:book", "status": "success", "ms": 3.44, "read": 0, "written": 0}
    if error is not None:
        usual |= {"status": "failed", "error": error}
    event(name, logging.WARNING if error else logging.INFO, exc_info=error, **usual | facts)


def raised(error: Exception) -> Exception:
    with pytest.raises(type(error)) as found:
        raise error
    return found.value


def test_a_line_says_how_a_run_ended_and_what_it_cost(lines: list[str]) -> None:
    ran(read=1200, written=1, caller="ada")
    ran("job.ran", job="job_1", attempt=2, status="retrying", ms=12_345.0)
    ran(
        "job.ran", job="job_1", attempt=1, task="to_erp", key=f'["{LONG}"]', function="shop:to_erp", read=10, written=10
    )
    assert lines == [
        "ok      mutation shop:book                 3.4 ms  read 1,200, wrote 1",
        "        ada",
        "retry   job      shop:book                 12.3 s  attempt 2",
        "penstock jobs show job_1",
        "ok      task     to_erp                    3.4 ms  read 10, wrote 10",
        f"        {LONG}",
    ]
    assert all(len(line) <= 71 for line in lines)


def test_an_error_shows_the_frames_of_the_program_and_is_told_once(lines: list[str]) -> None:
    ran(error=raised(ApplicationError("Seat A1 is taken.")), job="job_1", name="job.ran")
    event("job.failed", logging.WARNING, job="job_1")
    first, said, place, hint = lines
    assert first.startswith("failed  job")
    assert (said, hint) == ("ApplicationError: Seat A1 is taken.", "penstock jobs show job_1")
    assert place.startswith("  at ")
    assert "test_cli_dev.py:" in place
    lines.clear()

    error = raised(ValueError("full\x1b[2J"))
    ran(error=error)
    event("call.failed", logging.ERROR, exc_info=error)
    event("http.request", method="POST", path="/api/query", function="shop:book", error="unexpected")
    assert [line.strip() for line in lines[1:]] == [
        "Traceback (most recent call last):",
        *(line for line in map(str.strip, lines) if line.startswith("File ") and "test_cli_dev.py" in line),
        "raise error",
        "ValueError: full␛[2J",
    ]
    lines.clear()

    ran(error=raised(AccessDenied("The access of shop:book does not let this caller in.")))
    event("call.refused", logging.WARNING, error="The access of shop:book does not let this caller in.")
    assert "call.refused" not in "".join(lines)
    event("call.refused", logging.WARNING, error="This server has too much to do.")
    assert "call.refused" in lines.pop()
    lines.clear()

    event("http.request", method="POST", path="/api/query")
    event("http.request", method="POST", path="/api/query", function="shop:gone", error="function_not_found")
    event("call.failed", logging.ERROR, exc_info=raised(KeyError("another")))
    event("worker.started", lease=1)
    event("job.parked", logging.WARNING, job="job_2")
    assert lines[0] == "refused POST      shop:gone  function_not_found"
    assert "call.failed" in lines[1]
    assert "job.parked" in lines[-1]
    assert "worker.started" not in "".join(lines)


def test_a_message_that_its_handler_failed_on_is_told_with_what_to_type_next(lines: list[str]) -> None:
    facts: dict[str, Any] = {"outbox": "to_erp", "message": 7, "key": f'["{LONG}"]', "attempts": 2}
    ran(error=raised(ConnectionError("no way")), kind="action", function="shop:to_erp")
    event("outbox.failed", logging.WARNING, **facts, error="ConnectionError: no way")
    assert lines[-1] == "message 7, attempt 2: penstock outbox show to_erp"
    assert "outbox.failed" not in "".join(lines)
    lines.clear()

    event("outbox.failed", logging.WARNING, **facts, error="ConnectionError: the sink did not answer in 30 seconds")
    assert lines == [
        "warning outbox.failed outbox=to_erp message=7",
        f'        key=["{LONG}"] attempts=2',
        "        error=ConnectionError: the sink did not answer in 30 seconds",
    ]


def test_a_broken_practice_is_told_with_its_place_and_once_with_its_page(lines: list[str]) -> None:
    follows = "run_mutation follows the transaction of line 69, and rows may change between"
    for place, seen in (("shop.py:70", follows), ("shop.py:12", "run_query follows")):
        why = "penstock check --explain PEN011"
        event("practice.broken", logging.WARNING, code="PEN011", function="shop:pay", place=place, seen=seen, why=why)
    assert lines == [
        "PEN011  shop.py:70  run_mutation follows the transaction of line 69,",
        "        and rows may change between",
        "        penstock check --explain PEN011 says why",
        "PEN011  shop.py:12  run_query follows",
    ]


async def test_many_runs_in_a_second_are_counted(lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.getLogRecordFactory()
    logging.setLogRecordFactory(lambda *args, **facts: at(record(*args, **facts), 100.5))
    try:
        for number in range(50):
            ran(function=f"shop:of_{number % 2}")
        ran(error=ValueError())
        logging.setLogRecordFactory(lambda *args, **facts: at(record(*args, **facts), 101.5))
        ran(function="shop:later")
    finally:
        logging.setLogRecordFactory(record)
    assert (len(lines), "shop:later" in lines[-1]) == (20 + 2 + 1, True), "a failure is never left out"
    assert capsys.readouterr().err.strip() == "… and 30 more: 15 shop:of_0, 15 shop:of_1"


def at(record: logging.LogRecord, time: float) -> logging.LogRecord:
    record.created = time
    return record


def test_links_and_changes_of_the_schema_are_one_line_each() -> None:
    assert links("http://x")["docs"] == "http://x/docs"
    assert schema_summary({"tables_made": 12, "changes": 12}) == "12 tables made"
    assert schema_summary({"tables_made": 1, "changes": 2}) == "1 table made, 1 other change of tables"
    assert schema_summary({"tables_made": 0, "changes": 2}) == "2 changes of tables"
    assert "up to date" in schema_summary({"tables_made": 0, "changes": 0})
