"""The output of commands: tables and fields for people, JSON for programs.

Owns the look of these. On a terminal a table fits its width; elsewhere it is plain text, as wide as its content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
from pydantic_core import to_jsonable_python
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.visible import visible, visible_json, visible_line

T = TypeVar("T")

_WIDEST_CELL, _NARROWEST_CELL = 40, 12
_NARROWEST_FOLDED, _NARROWEST_NEEDED = 10, 16  # in rows; a date is 10 wide
_MOST_LINES = 3  # of a folded cell in rows
_GAP = 2  # between columns
_LABEL = 17


def make_console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, markup=False)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> None:
    """Print a table with all of its columns, the widest folded if need be, or in lines that the terminal wraps."""
    cells, console = _one_line_each(rows), make_console()
    widths = _folded(headers, cells, console.width) if console.is_terminal else []
    if widths:
        console.print(_table(dict(zip(headers, widths, strict=True)), headers, cells, right, folded=headers))
    else:
        _print_plainly(headers, cells, right)


def print_rows(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    needed: str | None = None,
    all_with: str = "--json",
) -> None:
    """Print the columns that find room, and the number of columns that did not. Long cells are cut off.

    The `needed` column finds room before all but the first; the others are folded for its sake. `right` are numbers.
    """
    cells, console = _one_line_each(rows), make_console()
    if not console.is_terminal:
        _print_plainly(headers, cells, right)
        return
    longest = {header: max(map(cell_len, (header, *column))) for header, *column in zip(headers, *cells, strict=True)}
    if needed is None:
        widths, folded = _fitting(longest, console.width), list[str]()
    else:
        widths = _making_room(longest, console.width, right, needed)
        folded = [one for one, width in widths.items() if one not in {*right, needed} and width < longest[one]]
    if folded and needed is not None:
        most, place = widths[needed] * _MOST_LINES, headers.index(needed)
        cells = [[*row[:place], _cut(row[place], most), *row[place + 1 :]] for row in cells]
        folded.append(needed)
    console.print(_table(widths, headers, cells, right, folded=folded))
    if left_out := len(headers) - len(widths):
        say(f"{counted(left_out, 'column')} more; see all with {all_with}.")


def print_list(
    noun: str,
    found: Sequence[T],
    headers: Sequence[str],
    row: Callable[[T], Sequence[str]],
    *,
    as_json: bool,
    right: Collection[str] = (),
) -> None:
    """Print a table, or JSON under its noun, which is a plural."""
    if as_json:
        print_json({noun: found})
    elif not found:
        click.echo(f"no {noun}")
    else:
        print_table(headers, [row(one) for one in found], right=right)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one thing, a line for each field that is not None. An empty name continues the field before."""
    for name, value in fields.items():
        if value is not None:
            print_field(name, value)


def print_field(name: str, value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    first, *more = visible(text.rstrip()).split("\n")
    click.echo(f"{name.replace('_', ' '):{_LABEL}} {first}".rstrip())
    for line in more:
        click.echo(f"{'':{_LABEL}} {line}".rstrip())


def print_json(value: Any, *, pretty: bool = False) -> None:
    text = json.dumps(plain(value), ensure_ascii=False, indent=2 if pretty else None)
    click.echo(visible_json(text))


def plain(value: Any) -> Any:
    """A value as the server's JSON has it: times in ISO form, objects by their fields."""
    return to_jsonable_python(value, bytes_mode="base64", fallback=str)


def say(text: str) -> None:
    """Tell people something beside the output, on stderr."""
    click.echo(text, err=True)


def counted(count: int, one: str, many: str = "") -> str:
    """A number and its noun: ``1 row``, ``1,200 rows``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def readable_time(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _one_line_each(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[visible_line(cell) for cell in row] for row in rows]


def _cut(cell: str, most: int | None) -> str:
    return cell if most is None or cell_len(cell) <= most else f"{set_cell_size(cell, most - 1)}…"


def _table(
    widths: Mapping[str, int],
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str],
    *,
    folded: Collection[str],
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold")
    for header, width in widths.items():
        table.add_column(
            header,
            justify="right" if header in right else "left",
            no_wrap=header not in folded or header in right,
            overflow="fold" if header in folded else "ellipsis",
            max_width=width,
        )
    for row in rows:
        table.add_row(*(Text(cell) for header, cell in zip(headers, row, strict=True) if header in widths))
    return table


def _print_plainly(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str]) -> None:
    widths = [max(map(cell_len, column)) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        cells = []
        for header, cell, width in zip(headers, row, widths, strict=True):
            rest = " " * (width - cell_len(cell))
            cells.append(rest + cell if header in right else cell + rest)
        click.echo("  ".join(cells).rstrip())


def _folded(headers: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    widths = [max(map(cell_len, column)) for column in zip(headers, *rows, strict=True)]
    while _total(widths) > room:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= _NARROWEST_CELL:
            return []
        widths[widest] -= 1
    return widths


def _fitting(longest: Mapping[str, int], room: int) -> dict[str, int]:
    """The widths of the columns for which a terminal has room; the last of them may be cut short."""
    found: dict[str, int] = {}
    for header, long in longest.items():
        width = min(long, _WIDEST_CELL)
        if width > room:
            if room >= _NARROWEST_CELL:
                found[header] = room
            break
        found[header] = width
        room -= width + _GAP
    return found


def _making_room(longest: Mapping[str, int], room: int, right: Collection[str], needed: str) -> dict[str, int]:
    """The widths of the columns for which a terminal has room if texts are folded to make some for one of them.

    Where that is not enough the last ones are left out, but never the first one.
    """
    least = {one: long if one in right else min(long, _NARROWEST_FOLDED) for one, long in longest.items()}
    least[needed] = min(longest[needed], _NARROWEST_NEEDED)
    shown = list(longest)
    while _total(least[one] for one in shown) > room and (others := [one for one in shown[1:] if one != needed]):
        shown.remove(others[-1])
    widths = {one: min(longest[one], _WIDEST_CELL) for one in shown}
    while _total(widths.values()) > room and (wide := [one for one in shown if widths[one] > least[one]]):
        widths[max(wide, key=lambda one: widths[one] / (2 if one == needed else 1))] -= 1
    widths[needed] += max(0, min(longest[needed] - widths[needed], room - _total(widths.values())))
    return widths


def _total(widths: Iterable[int]) -> int:
    return sum(width + _GAP for width in widths) - _GAP
