"""`penstock check`: how long it takes, and how often it is right on the labelled set of the tests."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from benchmarks.harness import Bar, Bench, Benchmark
from penstock.check.checker import check

_SETS = Path(__file__).parents[1] / "tests" / "check" / "labelled"
_EXPECT = re.compile(r"# (?:expect|missed): (PEN\d+(?:, PEN\d+)*)")
_LINES = 50_000


async def speed(bench: Bench) -> float:
    """Seconds for 50,000 lines of programs."""
    with tempfile.TemporaryDirectory() as folder:
        lines = _write(Path(folder))
        began = time.perf_counter()
        found = check([Path(folder)]).findings
        taken = time.perf_counter() - began
    bench.row(f"{lines:,} lines with {len(found):,} findings", f"{taken:.2f} s")
    return taken


def _write(folder: Path) -> int:
    """Write the programs of the labelled sets again and again; how many lines they have."""
    lines, sources = 0, _sources()
    for number in count():
        if lines >= _LINES:
            break
        file, text = sources[number % len(sources)]
        path = folder / f"copy{number // len(sources)}" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        lines += text.count("\n")
    return lines


def _sources() -> list[tuple[Path, str]]:
    return [(file.relative_to(_SETS), file.read_text("utf-8")) for file in sorted(_SETS.rglob("*.py"))]


Label = tuple[str, int, str]  # file, line, rule


async def precision(bench: Bench) -> float:
    """The share of findings that are right, in the worst of the sets."""
    shares = []
    for name, expected, told in _sets():
        wrong = told - expected
        shares.append(1 - len(wrong) / len(told))
        bench.row(name, f"{len(told)} findings", f"{len(wrong)} wrong", f"{shares[-1]:.3f}")
    return min(shares)


async def recall(bench: Bench) -> float:
    """The share of wrong lines that are found, in the worst of the sets."""
    shares = []
    for name, expected, told in _sets():
        missed = expected - told
        shares.append(1 - len(missed) / len(expected))
        bench.row(name, f"{len(expected)} wrong lines", f"{len(missed)} missed", f"{shares[-1]:.3f}")
    return min(shares)


def _sets() -> Iterator[tuple[str, set[Label], set[Label]]]:
    """Each set: its name, its labels, and what is told of it."""
    for folder in sorted(_SETS.iterdir()):
        labels = {
            (str(file), number, code)
            for file in folder.rglob("*.py")
            for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
            for found in _EXPECT.finditer(line)
            for code in found[1].split(", ")
        }
        told = {(str(one.path), one.span.line, one.code) for one in check([folder]).findings}
        yield folder.name, labels, told


BENCHMARKS = (
    Benchmark("check_seconds", speed, Bar(at_most=2)),
    Benchmark("check_precision", precision, Bar(at_least=0.95)),
    Benchmark("check_recall", recall, Bar(at_least=0.95)),
)
