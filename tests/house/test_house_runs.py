"""How the suite runs where something is missing, and how it tells of failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stage.needs import INSISTS, program

_SUITE = """
import ast, gc
import pytest
from stage.needs import program

@pytest.fixture(scope="session")
def redis():
    return program("redis-server", places=["/nowhere"])

def test_one(redis): pass
def test_another(redis): pass
def test_of_another_server(): program("epmd", "rabbitmq-server", ["/nowhere"])
def test_of_none(): pass
"""

_FAILING = """
import ast, gc

def test_that_leaves_a_finalizer():
    gc.callbacks.append(lambda *_: ast.parse("a + b"))  # as the traceback of an error in a finalizer does
    gc.freeze()
    gc.set_threshold(20, 1000, 1000)
    deep(40)

def deep(levels):
    return deep(levels - 1) if levels else 1 / 0
"""
_DEEP_SOURCE = f"nested = {'[' * 30}{']' * 30}\n" * 100  # so that collections happen while the parser is deep in it


def ran(folder: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a file of tests as the suite is run."""
    file = folder / "test_suite.py"
    file.write_text(text)
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-p", "stage.reporting", "-p", "no:cacheprovider", "-q", str(file)]
    given = ("PENSTOCK_TEST_", INSISTS, "PYTEST_")  # as a shell may set them
    clean = {name: value for name, value in os.environ.items() if not name.startswith(given)}
    return subprocess.run(
        command, cwd=folder, env=clean | {"PYTHONPATH": str(tests)} | environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_tests_are_skipped_whose_server_is_missing_and_the_summary_says_how_to_get_it(tmp_path: Path) -> None:
    done = ran(tmp_path, _SUITE)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 3 skipped" in done.stdout
    assert "   1 need rabbitmq-server\n   2 need redis-server\n" in done.stdout
    assert "sudo apt-get install rabbitmq-server redis-server\n" in done.stdout


def test_tests_fail_whose_server_is_missing_where_all_are_to_run(tmp_path: Path) -> None:
    done = ran(tmp_path, _SUITE, **{INSISTS: "1"})
    assert "1 failed, 1 passed, 2 errors" in done.stdout
    assert "redis-server is missing" in done.stdout


def test_a_program_may_be_named_and_is_missing_if_it_is_too_old_or_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(INSISTS, raising=False)
    for script, version in ("echo nats-server: v2.10.1", True), ("echo v2.8.4", False), ("exit 1", False):
        named = tmp_path / f"nats-{len(script)}"
        named.write_text(f"#!/bin/sh\n{script}\n")
        named.chmod(0o755)
        monkeypatch.setenv("PENSTOCK_TEST_NATS_SERVER", str(named))
        if version:
            assert program("nats-server", places=["/nowhere"]) == str(named)
        else:
            with pytest.raises(pytest.skip.Exception, match=r"needs nats-server, from version 2\.9 on"):
                program("nats-server", places=["/nowhere"])


def test_a_failure_is_told_whatever_finalizers_do(tmp_path: Path) -> None:
    """On CPython 3.11 a parser that is called within a parser raises SystemError, which ended the whole run."""
    done = ran(tmp_path, _FAILING + _DEEP_SOURCE)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "ZeroDivisionError" in done.stdout
    assert "INTERNALERROR" not in done.stdout + done.stderr
