"""What type checkers accept and refuse in programs of users: the samples beside this file, the documentation, and
a generated client.

A line of a sample that has to be refused ends with ``# refused: `` and the codes of mypy's errors; every other line has
to be accepted. ``assert_type`` in them says what results are.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mypy import api
from programs import everykind
from stage.clients import COMPILERS, node_modules
from stage.repository import PAGES, ROOT, modules_of

from penstock.codegen.description import describe
from penstock.codegen.python import python_module

_HERE = Path(__file__).parent
_MARK = re.compile(r"# refused: (?P<codes>[a-z, -]+)$")
_REFUSAL = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*?)(?:  \[(?P<code>[a-z-]+)\])?$")
_SAMPLES = sorted((_HERE / "samples").glob("*.py"))

Refusals = dict[int, list[str]]


def expected(sample: Path) -> Refusals:
    """The codes that a sample's marks announce, by line."""
    found = {number: _MARK.search(line) for number, line in enumerate(sample.read_text("utf-8").splitlines(), 1)}
    return {number: sorted(mark["codes"].split(", ")) for number, mark in found.items() if mark}


@dataclass(frozen=True)
class Found:
    """What mypy refuses: in samples, by their names and by lines; in the documentation, in its own words."""

    samples: dict[str, Refusals]
    pages: list[str]


def refusals(output: str) -> Iterator[tuple[Path, int, str, str]]:
    """Each error of mypy: its file, its line, its code, and all that is said."""
    for line in output.splitlines():
        found = _REFUSAL.fullmatch(line)
        if found:
            yield Path(found["file"]).absolute(), int(found["line"]), found["code"] or found["text"], line


def check(pages: Path) -> Found:
    """What mypy says of everything. It keeps what it has read for the next run of the tests."""
    for page in PAGES:
        for name, text in modules_of(page).items():
            path = pages / f"{name}.py"
            assert not path.exists(), f"two pages have a module {name}"
            path.write_text(text, "utf-8")
    public = [function for function in everykind.app.registry if function.public]
    (pages / "generated_client.py").write_text(python_module(describe(public)), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MYPYPATH", f"{ROOT / 'src'}:{ROOT / 'examples' / 'tenants'}:{_HERE}:{pages}")
        options = ["--strict", "--config-file=", "--explicit-package-bases", "--no-pretty", "--no-error-summary"]
        cache = ROOT / ".mypy_cache" / "samples"
        output, failure, _status = api.run([*options, "--cache-dir", str(cache), *map(str, _SAMPLES), str(pages)])
    assert not failure
    of_samples = {sample.name: Refusals() for sample in _SAMPLES}
    of_pages: list[str] = []
    for file, line, code, text in refusals(output):
        if file.is_relative_to(pages):
            of_pages.append(text)
        else:
            assert file.name in of_samples, output
            of_samples[file.name].setdefault(line, []).append(code)
    return Found(of_samples, of_pages)


def test_what_is_marked_is_refused_and_nothing_else_and_all_pages_are_accepted(tmp_path: Path) -> None:
    """One test: mypy reads all of penstock before it says anything, which takes most of its time."""
    found = check(tmp_path)
    of_samples = {name: {line: sorted(codes) for line, codes in lines.items()} for name, lines in found.samples.items()}
    assert of_samples == {sample.name: expected(sample) for sample in _SAMPLES}
    assert not found.pages


@pytest.mark.long
def test_pyright_refuses_the_same_lines(tmp_path: Path) -> None:
    """In its own words; as mypy does, it looks for comparisons that are never true."""
    pyright = node_modules(COMPILERS) / "node_modules" / ".bin" / "pyright"
    shutil.copytree(_HERE / "samples", tmp_path / "samples")
    (tmp_path / "pyrightconfig.json").write_text('{"reportUnnecessaryComparison": "error"}')
    command = str(pyright), "--pythonpath", sys.executable, "--outputjson"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    of_samples: dict[str, set[int]] = {sample.name: set() for sample in _SAMPLES}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            of_samples[Path(one["file"]).name].add(one["range"]["start"]["line"] + 1)
    assert of_samples == {sample.name: {*expected(sample)} for sample in _SAMPLES}
