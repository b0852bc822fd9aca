"""Programs that no Python package brings: where they are, and what becomes of tests where they are missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import NoReturn

import pytest

INSISTS = "TESTS_NEED_SERVERS"
INSTALL = "sudo apt-get install"
NEEDS = "needs "
PLACES = (os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/local/sbin", "/opt/homebrew/bin",
          "/opt/homebrew/sbin")  # fmt: skip


def program(name: str, package: str | None = None, places: Sequence[str] = PLACES) -> str:
    """Where a program is; the test is skipped if it is nowhere.

    Args:
        name: What it is called.
        package: The package of Debian and Ubuntu that has it, if its name is another.
        places: Where to look.
    """
    variable = "PENSTOCK_TEST_" + name.upper().replace("-", "_")
    found = os.environ.get(variable) or shutil.which(name, path=os.pathsep.join(places))
    if not found:
        lack(package or name)
    return found


def lack(package: str) -> NoReturn:
    """Skip the test, as a package is missing; it fails where all are to be there, as in `.ci/run`."""
    if os.environ.get(INSISTS):
        pytest.fail(f"{package} is missing, and {INSISTS} is set; see CONTRIBUTING.md.")
    pytest.skip(f"{NEEDS}{package}")
