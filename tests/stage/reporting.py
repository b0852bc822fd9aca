"""What pytest tells of a run: which servers were missing, and failures without a garbage collection in between."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
from stage.needs import INSTALL, NEEDS, THEN

# These are hooks of pytest; tests/conftest.py gives them to it.


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Keep finalizers out of the report of a failure.

    The report parses source. A collection inside of the parser may run a finalizer that parses too, as the traceback of
    its own error does: CPython 3.11 answers that with SystemError, which would end the whole run.
    """
    if call.excinfo is None:
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which servers were missing, and how many tests that left out."""
    reasons = (report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ()))
    left_out = Counter(reason.removeprefix(NEEDS) for reason in reasons if reason.startswith(NEEDS))
    if not left_out:
        return
    terminalreporter.section("tests left out")
    for server, count in sorted(left_out.items()):
        terminalreporter.write_line(f"{count:>4} need {server}")
    packages = sorted({server.split(",")[0] for server in left_out})
    terminalreporter.write_line(f"To run them too: {INSTALL} {' '.join(packages)}")
    for command in sorted({server.split(THEN)[1] for server in left_out if THEN in server}):
        terminalreporter.write_line(f"and then: {command}")
