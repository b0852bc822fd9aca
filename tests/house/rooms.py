"""The rooms of the package: how large each is, and whether its files import each other in circles.

`make check` runs it. A circle counts even if only type checkers see it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"
_SPLIT = {"api", "calls", "services", "store"}  # whose folders are rooms of their own


def room_of(path: Path) -> str:
    """The room of a file of the package."""
    *folders, _ = path.relative_to(PACKAGE).parts
    return "/".join(folders[: 2 if folders and folders[0] in _SPLIT else 1]) or "(root)"


def circle() -> list[str]:
    """Files of which each imports the next, and the last one the first; none if there is no circle."""
    graph = grimp.build_graph("penstock", cache_dir=None)
    try:
        TopologicalSorter({one: graph.find_modules_directly_imported_by(one) for one in graph.modules}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def table() -> Iterator[str]:
    """The size of each room, the largest first."""
    files, lines = Counter[str](), Counter[str]()
    for path in sorted((*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.sql"))):
        files[room_of(path)] += 1
        lines[room_of(path)] += len(path.read_text("utf-8").splitlines())
    yield f"{'room':<20} {'files':>5} {'lines':>6}"
    for room, count in lines.most_common():
        yield f"{room:<20} {files[room]:>5} {count:>6}"
    yield f"{'all':<20} {files.total():>5} {lines.total():>6}"
    yield f"{'without testing':<20} {files.total() - files['testing']:>5} {lines.total() - lines['testing']:>6}"


def main() -> int:
    """Print the table; 1 if there is a circle."""
    print("\n".join(table()))  # noqa: T201 - it is what `make check` shows
    found = circle()
    if found:
        print("These files import each other in a circle:", " -> ".join(found))  # noqa: T201 - as above
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
