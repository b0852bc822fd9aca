"""What jobs have written down of when they ran, and whether that was within a limit."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from stage.waits import until


@dataclass
class History:
    """What ran when, as the jobs themselves have written down."""

    file: Path
    limits: list[tuple[float, int]]
    deaths: dict[int, float] = field(default_factory=dict)

    def moves(self) -> list[tuple[float, int]]:
        """When one more began (1), and when one ended (-1)."""
        moves: list[tuple[float, int]] = []
        running: dict[int, int] = defaultdict(int)
        for line in self.file.read_text().splitlines():
            moment, process, what = line.split()
            step = 1 if what == "begins" else -1
            running[int(process)] += step
            moves.append((float(moment), step))
        for number, left in running.items():
            assert left == 0 or number in self.deaths, "what began has ended, or died"
            moves += [(self.deaths[number], -1)] * left if left else []
        return sorted(moves)

    def most(self) -> int:
        """How many ran at once, at most; fails if one began beyond the limit."""
        count = most = 0
        for moment, step in self.moves():
            count += step
            most = max(most, count)
            if step > 0:
                assert count <= self.limit_at(moment), f"{count} ran at {moment}: {self.limits}"
        return most

    def count(self, what: str) -> int:
        """How often something has been written down: ``begins``, ``ends``."""
        return self.file.read_text().count(what)

    def limit_at(self, moment: float) -> int:
        """The limit in force."""
        return [limit for since, limit in self.limits if since <= moment][-1]


async def some_have_begun(history: History, count: int) -> None:
    async def enough() -> bool:
        return history.count("begins") >= count

    await until(enough)


async def some_more_begin(history: History, count: int) -> None:
    await some_have_begun(history, history.count("begins") + count)
