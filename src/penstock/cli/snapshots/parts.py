"""The numbers of an import, for each table and for the files, and the lines that were refused."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from penstock.cli.lines import LineRefused
from penstock.dataclass import dataclass
from penstock.observe.readable import amount

_SHOWN = 20  # refused rows of a table


@dataclass(slots=True, kw_only=True)
class Part:
    """The rows of one table, or the files."""

    name: str  # its name in the snapshot
    table: str  # where it goes
    stored: int = 0
    present: int = 0
    refused: int = 0
    shown: list[LineRefused] = field(default_factory=list)

    def refuse(self, line: LineRefused) -> None:
        """Count a line that is not imported."""
        self.refused += 1
        if len(self.shown) < _SHOWN:
            self.shown.append(line)

    def describe_refused(self) -> list[str]:
        """The refused lines, or the first of them, as a person reads them."""
        lines = [f"{self.name}, {line.what}" for line in self.shown]
        more = self.refused - len(self.shown)
        return [*lines, f"{self.name}: {amount(more, 'more row')} refused."] if more else lines

    def report(self) -> dict[str, Any]:
        """The numbers, for programs."""
        refused = [line.what for line in self.shown]
        numbers = {"rows": self.stored, "present": self.present, "refused": self.refused}
        return {"from": self.name, "table": self.table, **numbers, "first_refused": refused}
