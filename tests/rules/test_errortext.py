"""Tracebacks as texts without the frames of penstock."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.observe.errortext import error_text, trace_text, trim

HERE = str(Path(__file__))


def through_penstock(work: Any) -> Any:
    """Call it from a file of penstock, which adds a line to tracebacks below."""
    file = str(Path(penstock.__file__).parent / "calls" / "made_up.py")
    text = "def call(work):\n    return (\n        work()\n    )\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {}
    exec(compile(text, file, "exec"), names)
    return names["call"](work)


def shown(work: Any) -> tuple[str, str]:
    """A whole traceback, and the trimmed one."""
    try:
        through_penstock(work)
    except Exception as error:  # noqa: BLE001 - whatever it raises
        text = trace_text(error)
        return text, trim(text)
    raise AssertionError


def test_frames_of_penstock_are_left_out_and_all_else_stays() -> None:
    def fail() -> None:
        raise ValueError('of\n  File "x.py", which is no frame\nmany lines')

    def fail_twice() -> None:
        try:
            through_penstock(fail)
        except ValueError as error:
            raise RuntimeError("again") from error

    def fail_together() -> None:
        errors = []
        for work in (fail, fail_twice):
            try:
                through_penstock(work)
            except Exception as error:  # noqa: BLE001 - whatever it raises
                errors.append(error)
        raise ExceptionGroup("both", errors)

    def call_itself(times: int = 0) -> None:
        if times == 10:
            raise ValueError
        call_itself(times + 1)

    for work in (fail, fail_twice, fail_together, call_itself):
        whole, short = shown(work)
        assert "made_up.py" in whole
        assert "made_up.py" not in short
        assert "work()" not in short
        left, lines = short.splitlines(), iter(whole.splitlines())
        assert all(line in lines for line in left), "in the same order"
        dropped = [line for line in whole.splitlines() if line not in left]
        assert all(line.lstrip(" |").startswith(("File", "return (", "work()", "^", "~")) for line in dropped), dropped
        assert short.count(HERE) == whole.count(HERE) > 0
    assert "which is no frame\nmany lines" in shown(fail)[1]
    assert "[Previous line repeated" in shown(call_itself)[1]


def test_a_traceback_of_penstock_alone_stays_whole() -> None:
    whole, short = shown(None)
    assert whole.replace(HERE, penstock.__file__) == trim(whole.replace(HERE, penstock.__file__))
    assert HERE in short
    for text in ("", "ValueError: no frames", "the end of\n    a long line\nValueError: x"):
        assert trim(text) == text


def fail_in(file: str, work: Any) -> Any:
    """Call it from a made-up file, whose code is equal for each name."""
    names: dict[str, Any] = {}
    exec(compile("def call(work):\n    return 1 + work()\n", file, "exec"), names)
    linecache.cache[file] = (0, None, [f"# {file}\n", f"    return 1 + work()  # {file}\n"], file)
    return names["call"](work)


def fail_with(error: BaseException) -> Any:
    def fail() -> None:
        raise error

    return fail


def misspell() -> Any:
    number = 1  # noqa: F841 - a name to suggest
    return numbr  # type: ignore[name-defined]  # noqa: F821 - misspelled


def fail_after() -> None:
    try:
        misspell()
    except NameError:
        raise KeyError("k")  # noqa: B904 - with its context


def fail_alone() -> None:
    try:
        misspell()
    except NameError:
        raise KeyError("k") from None


def test_a_traceback_is_as_python_prints_it_at_first_and_again() -> None:
    noted, group = ValueError("with a note"), ExceptionGroup("both", [ValueError("one"), KeyError("two")])
    noted.add_note("a note\nof two lines")
    works = [misspell, lambda: compile("a b", "<there>", "exec"), fail_after, fail_alone]
    for work in (*works, fail_with(noted), fail_with(group)):
        for file in ("<one>", "<other>", "<one>"):
            with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it raises
                fail_in(file, work)
            assert trace_text(caught.value) == "".join(traceback.format_exception(caught.value))
            assert file in trace_text(caught.value)
    assert trace_text(ValueError("x")) == "ValueError: x\n"


def test_a_group_names_its_errors() -> None:
    group = ExceptionGroup("many", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])])
    assert error_text(group) == (
        "ExceptionGroup: many (2 sub-exceptions): ValueError: a; ExceptionGroup: inner (1 sub-exception): KeyError: 'b'"
    )
