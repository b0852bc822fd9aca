"""What the demo shows: a live picture on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from time import monotonic

from day import Day
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table


class Screen:
    """Shows a day: live on a terminal, line by line elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.began = monotonic()
        self._past: deque[tuple[float, int, int]] = deque(maxlen=12)

    def tell(self, what: str) -> None:
        """Something has happened."""
        self.console.print(f"[dim]{monotonic() - self.began:5.1f} s[/]  {what}", highlight=False)

    @asynccontextmanager
    async def showing(self, day: Day) -> AsyncIterator[None]:
        """Show a day for the time of a block."""
        await day.look()
        with ExitStack() as stack:
            if self.console.is_terminal:
                live = stack.enter_context(Live(self._picture(day), console=self.console, transient=True))
                task = asyncio.create_task(self._repeat(0.2, day, lambda: live.update(self._picture(day))))
            else:
                task = asyncio.create_task(self._repeat(2, day, lambda: self.tell(self._line(day))))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _repeat(self, seconds: float, day: Day, show: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await day.look()
            show()

    def _line(self, day: Day) -> str:
        messages, jobs, provider = day.since("messages"), day.since("jobs"), day.state["provider"]
        return (
            f"{day.counts['answered']} of {len(day.rows)} rows; messages: {messages['accepted']} accepted, "
            f"{messages['sending']} sending, {messages['retrying']} retrying; jobs: {jobs['ready']} ready, "
            f"{jobs['running']} running; provider {'DOWN' if provider['outage'] else 'up'}"
        )

    def _picture(self, day: Day) -> RenderableType:
        bookings, messages, jobs = day.since("bookings"), day.since("messages"), day.since("jobs")
        provider, answers = day.state["provider"], Counter(day.state["provider"]["answers"])
        answered, total = day.counts["answered"], len(day.rows)
        top = Table.grid(padding=(0, 2), expand=True)
        top.add_column(width=6)
        top.add_column(ratio=1)
        top.add_row(f"{monotonic() - self.began:4.0f} s", ProgressBar(total, answered), f"{answered} of {total} rows")
        bottom = Table.grid(padding=(0, 3), expand=True)
        for _ in range(4):
            bottom.add_column(ratio=1)
        rates = self._rates(answered, provider["accepted"])
        bottom.add_row(
            _column(
                f"bookings {rates[0]:5.1f}/s",
                {
                    **{name: bookings[name] for name in ("booked", "confirmed", "cancelled")},
                    "refused": len(day.refusals),
                    "repeated": day.counts["repeated request"],
                },
            ),
            _column(
                f"messages {rates[1]:5.1f}/s",
                {name: messages[name] for name in ("sending", "retrying", "accepted", "refused")},
            ),
            _column(
                "provider [bold red]OUTAGE[/]" if provider["outage"] else "provider [green]up[/]",
                {
                    "accepted": provider["accepted"],
                    "under way": provider["under_way"],
                    "failed": sum(answers[name] for name in ("overloaded", "broken", "out of order")),
                    "answer lost": answers["answer lost"],
                    "repeated": answers["repeated"],
                },
            ),
            _column(
                "penstock [green]up[/]" if day.state["penstock"]["up"] else "penstock [bold red]DOWN[/]",
                {
                    "jobs ready": jobs["ready"],
                    "jobs running": jobs["running"],
                    "jobs later": jobs["scheduled"],
                    "jobs done": jobs["success"],
                    "jobs lost": jobs["failed"],
                },
            ),
        )
        return Group("", top, "", bottom)

    def _rates(self, answered: int, accepted: int) -> tuple[float, float]:
        """Rows and accepted messages per second, over the last few looks."""
        self._past.append((monotonic(), answered, accepted))
        seconds = max(0.1, self._past[-1][0] - self._past[0][0])
        return (answered - self._past[0][1]) / seconds, (accepted - self._past[0][2]) / seconds


def _column(title: str, counts: dict[str, int]) -> RenderableType:
    table = Table.grid(expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    return Group(f"[bold]{title}[/]", table)
