"""A baseline: the findings that an old program has today, so that only new ones are told.

A finding is known by its file, its rule and the text of its line, so that lines may move.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from penstock.check.finding import Finding
from penstock.check.formats import Lines


def write(path: Path, findings: Iterable[Finding], lines: Lines) -> None:
    """Write these findings into a baseline file.

    Raises:
        ValueError: The file cannot be written.
    """
    counted = Counter(_key(path.parent, one, lines) for one in findings)
    rows = [{"path": file, "code": code, "line": line, "count": n} for (file, code, line), n in sorted(counted.items())]
    try:
        path.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise ValueError(f"The baseline {path} cannot be written: {error.strerror}.") from error


def without_known(path: Path, findings: Iterable[Finding], lines: Lines) -> list[Finding]:
    """The findings that a baseline file does not hold.

    Raises:
        ValueError: There is no such file, or it is none.
    """
    try:
        rows = json.loads(path.read_text("utf-8"))
        known = Counter({(row["path"], row["code"], row["line"]): row["count"] for row in rows})
    except OSError as error:
        raise ValueError(f"The baseline {path} cannot be read. Write it with --write-baseline.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no baseline. Write it with --write-baseline.") from error
    left = []
    for one in findings:
        key = _key(path.parent, one, lines)
        if known[key] > 0:
            known[key] -= 1
        else:
            left.append(one)
    return left


def _key(folder: Path, one: Finding, lines: Lines) -> tuple[str, str, str]:
    whole, base = one.path.resolve(), folder.resolve()
    text = lines.get(one.path, ())
    line = text[one.span.line - 1].strip() if one.span.line <= len(text) else ""
    return whole.relative_to(base).as_posix() if whole.is_relative_to(base) else whole.as_posix(), one.code, line
