"""Reads the text of a CREATE TABLE, which is all that SQLite keeps of a table: its columns, constraints and options.

Owns taking the text apart at its commas, so that a table can be rewritten with all parts unknown to penstock kept.
Leaves the meaning of columns and indexes to SQLite's own pragmas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field

from penstock.dataclass import dataclass
from penstock.schema.fields import Kind
from penstock.schema.stored import StoredCheck

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)"""
    r"""|(?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])"""
    r"""|(?P<text>'(?:[^']|'')*')|(?P<word>[\w$]+)|(?P<sign>.)""",
    re.DOTALL,
)
_CONSTRAINTS = {"constraint", "primary", "unique", "check", "foreign"}
_TEXT = re.compile(r"'(?:[^']|'')*'")
_KIND = re.compile(rf"/\* (?:{'|'.join(kind.value for kind in Kind)}) \*/")
_COLLATION = re.compile(r'\bcollate\s+"?(\w+)', re.IGNORECASE)
_CHOICES = re.compile(r"""constraint "((?:[^"]|"")+)" check \("(?:[^"]|"")+" in \(((?:'(?:[^']|'')*'|[^'()])*)\)\)""")
_CHOICE = re.compile(r"'((?:[^']|'')*)'|(-?\d+)")


@dataclass(frozen=True)
class TableText:
    """The parts of a CREATE TABLE, each as it is written."""

    columns: dict[str, str] = field(default_factory=dict)  # the text of each column, by its name in lower case
    constraints: tuple[str, ...] = ()  # the constraints of the table as a whole
    options: str = ""  # the text behind the columns, such as ``strict``


def read_table(sql: str) -> TableText:
    """The parts of a table."""
    columns, constraints = {}, []
    parts, options = _split(sql)
    for part in parts:
        name, is_constraint = _first_word(part)
        if is_constraint:
            constraints.append(part)
        else:
            columns[name.lower()] = part
    return TableText(columns, tuple(constraints), options)


def read_type(declared: str, sql: str) -> str:
    """The type of a column as the dialect spells it: with the comment that tells its kind, and its collation."""
    said = _TEXT.sub("''", sql)
    kind, collation = _KIND.search(said), _COLLATION.search(said)
    return declared + (f" {kind[0]}" if kind else "") + (f" collate {collation[1]}" if collation else "")


def read_collations(sql: str) -> dict[str, str]:
    """The collations of a table's columns that say one, by their names in lower case."""
    found = {name: _collation(text) for name, text in read_table(sql).columns.items()}
    return {name: one for name, one in found.items() if one}


def read_choices(sql: str) -> Iterator[StoredCheck]:
    """The checks in a column's text that limit it to choices."""
    for name, listed in _CHOICES.findall(sql):
        found = [int(number) if number else text.replace("''", "'") for text, number in _CHOICE.findall(listed)]
        yield StoredCheck(name.replace('""', '"'), frozenset(found))


def _split(sql: str) -> tuple[list[str], str]:
    """The parts between the commas inside the table's own parentheses, and the text behind these."""
    parts: list[str] = []
    depth = start = 0
    for token in _TOKEN.finditer(sql):
        sign = token["sign"]
        if sign == "(":
            depth += 1
            start = token.end() if depth == 1 else start
        elif sign == ")":
            depth -= 1
            if not depth:
                return [*parts, _line(sql[start : token.start()])], sql[token.end() :].strip()
        elif sign == "," and depth == 1:
            parts.append(_line(sql[start : token.start()]))
            start = token.end()
    return parts, ""


def _line(part: str) -> str:
    """A part without the space around it; a line comment at its end keeps its line to itself."""
    part = part.strip()
    return f"{part}\n" if "--" in part.rpartition("\n")[2] else part


def _collation(column: str) -> str:
    """The collation of a column as SQL; not that of a formula or a check in it."""
    depth, said, found = 0, False, ""
    for token in _TOKEN.finditer(column):
        if token["space"]:
            continue
        depth += {"(": 1, ")": -1}.get(token["sign"] or "", 0)
        if said and (name := token["word"] or token["quoted"] or token["text"]):
            found = name
        said = depth == 0 and (token["word"] or "").lower() == "collate"
    return found


def _first_word(part: str) -> tuple[str, bool]:
    for token in _TOKEN.finditer(part):
        if token["word"]:
            return token["word"], token["word"].lower() in _CONSTRAINTS
        if token["quoted"]:
            quote = token["quoted"][-1]
            return token["quoted"][1:-1].replace(quote * 2, quote), False
        if token["text"]:
            return token["text"][1:-1].replace("''", "'"), False
    return "", True
