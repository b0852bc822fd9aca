"""What commands print: tables for people, JSON for programs.

Owns the look of both. On a terminal a table fits its width; elsewhere it is plain text, as wide as its content.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDEST_CELL = 40
_GAP = 2
_UNSEEN = str.maketrans({"\n": "⏎", "\r": "", "\t": " ", "\x1b": "␛"})


def make_console(*, stderr: bool = False) -> Console:
    """A console that shows texts as they are."""
    return Console(stderr=stderr, highlight=False, markup=False)


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = (), whole: bool = True
) -> int:
    """Print a table; how many of its columns found no room.

    Args:
        headers: Names of the columns.
        rows: Cells.
        right: Columns of numbers.
        whole: Whether all columns are shown, wrapped if need be; otherwise as many as fit, with long cells cut off.
    """
    cells = [[cell.translate(_UNSEEN) for cell in row] for row in rows]
    console = make_console()
    if not console.is_terminal:
        _print_plainly(headers, cells, right)
        return 0
    shown = len(headers) if whole else _fitting(headers, cells, console.width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", padding=(0, 1))
    for header in headers[:shown]:
        table.add_column(
            header,
            justify="right" if header in right else "left",
            no_wrap=not whole or header in right,
            overflow="fold" if whole else "ellipsis",
            max_width=None if whole else _WIDEST_CELL,
        )
    for row in cells:
        table.add_row(*map(Text, row[:shown]))
    console.print(table)
    return len(headers) - shown


def print_json(value: Any, *, pretty: bool = False) -> None:
    """Print a value as JSON: on one line, or readably."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2 if pretty else None, default=str))


def say(text: str) -> None:
    """Tell people something that is not the output itself."""
    click.echo(text, err=True)


def counted(count: int, one: str, many: str = "") -> str:
    """A number and its noun: ``1 row``, ``1,200 rows``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def readable_time(time: datetime) -> str:
    """A point in time, to the second, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _print_plainly(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str]) -> None:
    """A table as lines of text, in columns."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        cells = [
            cell.rjust(width) if header in right else cell.ljust(width)
            for header, cell, width in zip(headers, row, widths, strict=True)
        ]
        click.echo((" " * _GAP).join(cells).rstrip())


def _fitting(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> int:
    """How many columns a terminal has room for, each no wider than a cell may be."""
    used = 0
    for place, header in enumerate(headers):
        widest = max([len(header), *(len(row[place]) for row in rows)])
        used += min(widest, _WIDEST_CELL) + _GAP
        if used > width and place:
            return place
    return len(headers)
