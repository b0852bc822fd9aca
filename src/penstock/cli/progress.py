"""A progress bar on stderr, where a person looks on; nothing elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from rich import progress

from penstock.cli.output import make_console


class Progress:
    """How far a long command is. Use it in ``with``.

    Args:
        what: What is being done.
        total: How much there is to do; None if nobody knows.
        size: Whether it is counted in bytes.
    """

    def __init__(self, what: str, total: int | None, *, size: bool = False) -> None:
        self._bar: progress.Progress | None = None
        if sys.stderr.isatty():
            done: Any = progress.DownloadColumn() if size else progress.MofNCompleteColumn()
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.TaskProgressColumn(),
                done,
                progress.TimeRemainingColumn(),
                console=make_console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(what, total=total)

    def advance(self, by: int) -> None:
        """So much more is done."""
        if self._bar is not None:
            self._bar.advance(self._task, by)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
