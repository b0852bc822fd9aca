"""The output of commands: tables and fields for people, JSON for programs.

Owns the look of these. On a terminal a table fits its width, and ids are never broken over lines; elsewhere it is plain
text, as wide as its content.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
from pydantic_core import to_jsonable_python
from rich.cells import cell_len, set_cell_size
from rich.console import Console

from penstock.cli.visible import visible, visible_json, visible_line
from penstock.observe.errortext import trim
from penstock.observe.readable import amount

T = TypeVar("T")

_WIDEST_CELL, _NARROWEST_CELL = 40, 12
_GAP, _INDENT = 2, 4  # between columns; of texts below a row
MOST_LINES = 3  # of an error in a list
_LABEL = 17


def make_console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, markup=False)


def print_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    most_lines: int | None = None,
    all_with: str = "",
) -> None:
    """Print a table. On a terminal, columns without room stand below their row, with their names.

    Args:
        headers: The names of the columns.
        rows: A text for each column.
        right: The columns of numbers.
        most_lines: The lines after which a text below a row is cut off; None for all.
        all_with: The option that shows all: columns without room are then only counted, and long cells cut off.
    """
    cells, room = [dict(zip(headers, map(visible_line, row), strict=True)) for row in rows], _room()
    widths = {header: max(map(cell_len, (header, *(row[header] for row in cells)))) for header in headers}
    if room is not None:
        widths = _cut(widths, room) if all_with else _inline(widths, room)
    head = _line(widths, {header: header for header in headers}, right)
    click.echo(head if room is None else f"{click.style(head, bold=True)}\n{'─' * _total(widths.values())}")
    below = [header for header in headers if header not in widths]
    for row in cells:
        click.echo(_line(widths, row, right))
        texts = [f"{header}: {row[header]}" for header in below if row[header] and not all_with]
        for text in _pack(texts, room or 0, most_lines):
            click.echo(text)
    if below and all_with:
        say(f"{amount(len(below), 'column')} more; see all with {all_with}.")


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
    room, label = _room(), name.replace("_", " ")
    for line in visible(text.rstrip()).split("\n"):
        parts = [line]
        if room is not None and not line.startswith(" "):  # as those of a traceback do
            parts = wrapper(room - _LABEL - 1).wrap(line) or parts
        for part in parts:
            click.echo(f"{label:{_LABEL}} {part}".rstrip())
            label = ""


def trace_of(trace: str | None, *, whole: bool) -> str | None:
    """A stored traceback as it is printed."""
    return trace if trace is None or whole else trim(trace)


def print_json(value: Any, *, pretty: bool = False) -> None:
    text = json.dumps(plain(value), ensure_ascii=False, indent=2 if pretty else None)
    click.echo(visible_json(text))


def plain(value: Any) -> Any:
    """A value as the server's JSON has it: times in ISO form, objects by their fields."""
    return to_jsonable_python(value, bytes_mode="base64", fallback=str)


def say(text: str) -> None:
    """Tell people something on stderr, apart from the output."""
    click.echo(text, err=True)


def readable_time(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _room() -> int | None:
    """The columns of the terminal; None without one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _line(widths: Mapping[str, int], cells: Mapping[str, str], right: Collection[str]) -> str:
    found = []
    for header, width in widths.items():
        cell, long = cells[header], cell_len(cells[header])
        cell = cell if long <= width else f"{set_cell_size(cell, width - 1)}…"
        rest = " " * (width - long)
        found.append(rest + cell if header in right else cell + rest)
    return (" " * _GAP).join(found).rstrip()


def wrapper(room: int, **how: Any) -> textwrap.TextWrapper:
    """A wrapper that breaks lines at spaces only, so that names, ids and commands stay whole and can be copied."""
    return textwrap.TextWrapper(
        max(room, _NARROWEST_CELL), break_long_words=False, break_on_hyphens=False, placeholder=" …", **how
    )


def _pack(texts: Sequence[str], room: int, most_lines: int | None) -> list[str]:
    """Texts in as few indented lines as they need; only spaces are broken, so that ids stay whole."""
    lines: list[str] = []
    indent = " " * _INDENT
    wrap = wrapper(room, initial_indent=indent, subsequent_indent=indent * 2, max_lines=most_lines)
    for text in texts:
        if lines and cell_len(lines[-1]) + _GAP + cell_len(text) <= room:
            lines[-1] += " " * _GAP + text
        else:
            lines += wrap.wrap(text)
    return lines


def _inline(longest: Mapping[str, int], room: int) -> dict[str, int]:
    """The widths of the first column, and of all others for which a terminal has room, whole."""
    found: dict[str, int] = {}
    for header, width in longest.items():
        if not found or _total([*found.values(), width]) <= room:
            found[header] = width
    return found


def _cut(longest: Mapping[str, int], room: int) -> dict[str, int]:
    """The widths of the first columns for which a terminal has room; the last of them may be cut short."""
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


def _total(widths: Iterable[int]) -> int:
    return sum(width + _GAP for width in widths) - _GAP
