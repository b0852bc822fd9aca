"""What commands print: tables for people, JSON for programs.

Owns the look of both. On a terminal a table fits its width; elsewhere it is plain text, as wide as its content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

T = TypeVar("T")

_WIDEST_CELL, _NARROWEST_CELL = 40, 12
_GAP = 3  # between columns
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
        whole: Whether all columns are shown, the widest folded if need be, or in lines that the terminal wraps; if not,
            as many as fit, with long cells cut off.
    """
    cells = [[cell.translate(_UNSEEN) for cell in row] for row in rows]
    console = make_console()
    fit = _folded if whole else _fitting
    widths = list(fit(headers, cells, console.width)) if console.is_terminal else []
    if not console.is_terminal or (whole and len(widths) < len(headers)):
        _print_plainly(headers, cells, right)
        return 0
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for header, width in zip(headers, widths, strict=False):
        table.add_column(
            header,
            justify="right" if header in right else "left",
            no_wrap=not whole or header in right,
            overflow="fold" if whole else "ellipsis",
            max_width=width,
        )
    for row in cells:
        table.add_row(*map(Text, row[: len(widths)]))
    console.print(table)
    return len(headers) - len(widths)


def print_list(
    noun: str,
    found: Sequence[T],
    headers: Sequence[str],
    row: Callable[[T], Sequence[str]],
    *,
    as_json: bool,
    right: Collection[str] = (),
) -> None:
    """Print all that was found: as JSON under its noun, or as a table.

    Args:
        noun: What they are, in the plural.
        found: What was found.
        headers: Names of the columns.
        row: The cells of one.
        as_json: Whether a program reads it.
        right: Columns of numbers.
    """
    if as_json:
        print_json({noun: found})
    elif not found:
        click.echo(f"no {noun}")
    else:
        print_table(headers, [row(one) for one in found], right=right)


def print_json(value: Any, *, pretty: bool = False) -> None:
    """Print a value as JSON: on one line, or readably."""
    click.echo(json.dumps(plain(value), ensure_ascii=False, indent=2 if pretty else None, default=str))


def plain(value: Any) -> Any:
    """A value as JSON says it: times in ISO form, lengths of time in seconds, objects by their fields."""
    match value:
        case Mapping():
            return {name: plain(one) for name, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Enum():
            return value.value
    known = fields(value) if is_dataclass(value) else None
    return value if known is None else {field.name: plain(getattr(value, field.name)) for field in known}


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
        click.echo("  ".join(cells).rstrip())


def _folded(headers: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """The widths of all columns if the widest of them are folded; nothing if there is no room for that."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    while sum(widths) + _GAP * (len(widths) - 1) > room:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= _NARROWEST_CELL:
            return []
        widths[widest] -= 1
    return widths


def _fitting(headers: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> Iterator[int]:
    """The widths of the columns for which a terminal has room; the last of them may be cut short."""
    for header, *cells in zip(headers, *rows, strict=True):
        width = min(max(map(len, (header, *cells))), _WIDEST_CELL)
        if width > room:
            if room >= _NARROWEST_CELL:
                yield room
            return
        yield width
        room -= width + _GAP
