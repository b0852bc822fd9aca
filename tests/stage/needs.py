"""Programs that no Python package brings, how pytest tells of tests that miss one, and how much a run tries."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Generator, Sequence
from functools import cache
from typing import Any, NoReturn

import pytest

INSISTS = "TESTS_NEED_SERVERS"
INSTALL = "sudo apt-get install"
NEEDS = "needs "
THEN = ", and "  # between a package and a command to type once it is installed
_SYSTEM = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/opt/homebrew/bin", "/opt/homebrew/sbin")
_RABBITMQ = "/usr/lib/rabbitmq/bin"  # Debian's in the path is only for root and for rabbitmq
_ONLY = os.environ.get("PENSTOCK_TEST_PATH")  # `make matrix` hides programs that the system has
PLACES = (_ONLY,) if _ONLY else (_RABBITMQ, os.environ.get("PATH", os.defpath), *_SYSTEM)
# The oldest version of each that tests can use.
OLDEST = {
    "chromium": (100,),
    "git": (2,),
    "nats-server": (2, 9),
    "node": (20,),
    "npm": (8,),
    "pgbouncer": (1, 18),
    "promtool": (2,),
    "redis-server": (6, 2),
}


def program(name: str, package: str | None = None, places: Sequence[str] = PLACES) -> str:
    """Where a program is; the test is skipped if it is nowhere, does not start, or is too old.

    Args:
        name: What it is called.
        package: The package of Debian and Ubuntu that has it, if its name is another.
        places: Where to look.
    """
    variable = "PENSTOCK_TEST_" + name.upper().replace("-", "_")
    found = os.environ.get(variable) or shutil.which(name, path=os.pathsep.join(places))
    if not found:
        lack(package or name)
    oldest = OLDEST.get(name)
    if oldest is not None and _version(found) < oldest:
        lack(f"{package or name}, from version {'.'.join(map(str, oldest))} on: {found} is older, or does not start")
    return found


@cache
def _version(path: str) -> tuple[int, ...]:
    """The version that a program prints, or none if it cannot be started."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    found = re.search(r"(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()


def lack(package: str) -> NoReturn:
    """Skip the test, as a package is missing; it fails where all are to be there, as in `.ci/run`."""
    if os.environ.get(INSISTS):
        pytest.fail(f"{package} is missing, and {INSISTS} is set; see CONTRIBUTING.md.")
    pytest.skip(f"{NEEDS}{package}")


# These are hooks of pytest; tests/conftest.py gives them to it.


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Keep finalizers out of the report of a failure.

    The report parses source. A collection inside of the parser may run a finalizer that parses too, as the traceback of
    its own error does: CPython 3.11 answers that with SystemError, which would end the whole run. So would a captured
    text that is not UTF-8, as it is sent to the process that shows it.
    """
    if call.excinfo is not None:
        gc.disable()
    try:
        report = yield
    finally:
        gc.enable()
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


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


# ----- how much a run tries: a few examples of hypothesis, always the same ones, or in `make test-long` many new ones


LONG = os.environ.get("TESTS_LONG", "") not in {"", "0"}
PART = os.environ.get("TESTS_PART", "")  # of a long run: what chooses it, such as the id of a commit
PARTS = 20
_PART = 5


def examples(many: int) -> int:
    """So many in a long run, and a part of them on each push."""
    return many if LONG else max(many // _PART, 3)
