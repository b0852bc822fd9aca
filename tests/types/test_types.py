"""What a type checker accepts and refuses in programs of users: the samples beside this file.

A line of a sample that has to be refused ends with ``# refused: `` and the codes of mypy's errors; every other line has
to be accepted. ``assert_type`` in them says what results are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mypy import api

_HERE = Path(__file__).parent
_MARK = re.compile(r"# refused: (?P<codes>[a-z, -]+)$")
_REFUSAL = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*?)(?:  \[(?P<code>[a-z-]+)\])?$")
_SAMPLES = sorted((_HERE / "samples").glob("*.py"))

Refusals = dict[int, list[str]]


def expected(sample: Path) -> Refusals:
    """The codes that a sample's marks announce, by line."""
    found = {number: _MARK.search(line) for number, line in enumerate(sample.read_text("utf-8").splitlines(), 1)}
    return {number: sorted(mark["codes"].split(", ")) for number, mark in found.items() if mark}


def refusals(output: str) -> Iterator[tuple[str, int, str]]:
    """Each error of mypy: the name of its sample, its line and its code."""
    for line in output.splitlines():
        found = _REFUSAL.fullmatch(line)
        if found:
            yield Path(found["file"]).name, int(found["line"]), found["code"] or found["text"]


def refused(cache: Path) -> dict[str, Refusals]:
    """What mypy refuses in the samples, by name and line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MYPYPATH", f"{_HERE.parents[1] / 'src'}:{_HERE}")
        options = ["--strict", "--config-file=", "--explicit-package-bases", "--no-pretty", "--no-error-summary"]
        output, failure, _status = api.run([*options, "--cache-dir", str(cache), *map(str, _SAMPLES)])
    assert not failure
    found: dict[str, Refusals] = {sample.name: {} for sample in _SAMPLES}
    for name, line, code in refusals(output):
        assert name in found, output
        found[name].setdefault(line, []).append(code)
    return found


def test_what_is_marked_is_refused_and_nothing_else(tmp_path: Path) -> None:
    """One test of all samples: several would be spread over processes, in each of which mypy reads all of penstock."""
    found = {name: {line: sorted(codes) for line, codes in lines.items()} for name, lines in refused(tmp_path).items()}
    assert found == {sample.name: expected(sample) for sample in _SAMPLES}


def test_an_error_would_be_noticed(tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text("a = 1\nb = f(a)  # refused: arg-type, call-arg\n", "utf-8")
    assert expected(sample) == {2: ["arg-type", "call-arg"]}
    output = f"{sample}:3: error: It is wrong: so  [arg-type]\n{sample}:3: note: As said.\n{sample}:4: error: No code"
    assert list(refusals(output)) == [("sample.py", 3, "arg-type"), ("sample.py", 4, "No code")]
