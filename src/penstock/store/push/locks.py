"""The lock that each statement of a schema change takes on PostgreSQL, and what makes one unsafe under load.

The rules are the ones of linters of migrations such as squawk. SQLite has one writer, so nothing there is of use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from penstock.dataclass import dataclass

_ALTER = r"alter\s+table\s.*"
EXCLUSIVE, SHARE_ROW = "ACCESS EXCLUSIVE", "SHARE ROW EXCLUSIVE"
SHARE_UPDATE, SHARE = "SHARE UPDATE EXCLUSIVE", "SHARE"
_NOT_VALID = "Add it as NOT VALID, then validate it."
_OLD_PROCESSES = "Processes of the old release fail from then on: do it in contract()."


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: str
    lock: str
    hazard: str = ""
    in_expand: bool = False  # whether it is unsafe only while processes of the old release run
    unless: str = ""  # an earlier statement that makes it safe


# The first that matches counts.
_RULES = (
    _Rule(r"create\s+(unique\s+)?index\s+concurrently|drop\s+index\s+concurrently|reindex.*concurrently", SHARE_UPDATE),
    _Rule(r"create\s+(unique\s+)?index", SHARE, "Writers wait until it is built. Build it concurrently."),
    _Rule(r"drop\s+index", EXCLUSIVE, "All wait while it waits for its lock. Drop it concurrently."),
    _Rule(r"reindex|cluster|vacuum\s+full", EXCLUSIVE, "Nobody can read or write the table until it is rewritten."),
    _Rule(r"truncate|drop\s+table", EXCLUSIVE, _OLD_PROCESSES, in_expand=True),
    _Rule(_ALTER + r"validate\s+constraint", SHARE_UPDATE),
    _Rule(_ALTER + r"add\s+.*\breferences\b(?!.*not\s+valid)", SHARE_ROW, f"All rows are read. {_NOT_VALID}"),
    _Rule(_ALTER + r"add\s+.*\bforeign\s+key.*not\s+valid", SHARE_ROW),
    _Rule(
        _ALTER + r"add\s+(constraint\s+\S+\s+)?(primary\s+key|unique|exclude)(?!.*using\s+index)", EXCLUSIVE,
        "Nobody can write until its index is built. Build a unique index concurrently, then add it USING INDEX.",
    ),
    _Rule(
        _ALTER + r"add\s+column.*(default\s+(random|gen_random_uuid|uuid\w*|clock_timestamp|nextval)\s*\(|serial"
        r"|generated\s+(always|by\s+default)\s+as)", EXCLUSIVE,
        "Its value differs from row to row, so the table is rewritten. Add the column, then use a Backfill.",
    ),
    _Rule(
        _ALTER + r"add\s+column(?!.*\bdefault\b).*\bnot\s+null", EXCLUSIVE,
        "It fails if there are rows. Add it as nullable, use a Backfill, and require it after that.",
    ),
    _Rule(_ALTER + r"add\s+(constraint\s+\S+\s+)?check(?!.*not valid)", EXCLUSIVE, f"All rows are read. {_NOT_VALID}"),
    _Rule(
        _ALTER + r"alter\s+(column\s+)?\S+\s+(set\s+data\s+)?type", EXCLUSIVE,
        "The table is rewritten, unless the types are stored alike. Use penstock migration new.",
    ),
    _Rule(
        _ALTER + r"set\s+not\s+null", EXCLUSIVE,
        "All rows are read. Add CHECK (… IS NOT NULL) NOT VALID, and validate it first.",
        unless=r"validate\s+constraint",
    ),
    _Rule(_ALTER + r"drop\s+column|alter\s+table\s.*\srename", EXCLUSIVE, _OLD_PROCESSES, in_expand=True),
    _Rule(r"create\s+(constraint\s+)?trigger", SHARE_ROW),
    _Rule(r"alter\s+table|drop\s+trigger|alter\s+index", EXCLUSIVE),
    _Rule(r"update\s(?!.*\bwhere\b)|delete\s(?!.*\bwhere\b)", "ROW EXCLUSIVE", "All rows stay locked. Use a Backfill."),
    _Rule(r"update|delete|insert", "ROW EXCLUSIVE"),
)  # fmt: skip
_COMPILED = [(re.compile(one.pattern, re.IGNORECASE | re.DOTALL), one) for one in _RULES]


def lock_of(sql: str) -> str:
    """The strongest lock of a statement on a table that exists; empty if it takes none, as for a new table."""
    rule = _rule(sql)
    return rule.lock if rule else ""


def hazards(statements: Sequence[str], step: str) -> Iterator[tuple[str, str]]:
    """The unsafe statements of a step of a migration file, each with the reason and the way out."""
    for number, sql in enumerate(statements):
        rule, before = _rule(sql), " ".join(statements[:number])
        if rule is None or not rule.hazard or (rule.in_expand and step != "expand"):
            continue
        if not rule.unless or not re.search(rule.unless, before, re.IGNORECASE):
            yield sql, rule.hazard


def _rule(sql: str) -> _Rule | None:
    return next((rule for pattern, rule in _COMPILED if pattern.match(sql.strip())), None)
