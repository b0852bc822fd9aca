"""Loads named queries from .sql files: a line ``-- name: purpose`` and the SQL below it, with ``:named`` parameters.

Owns the file format. Each noun has one file for both stores, in `store.nouns`. It is written for PostgreSQL, and
SQLite's dialect respells a few words. Where a query has to differ, a line ``-- SQLite: reason`` or
``-- PostgreSQL: reason`` stands above each form; a query with one form exists in that store only.

Lines that several queries or forms share are a fragment, ``-- {name}: purpose``, and stand for ``{name}`` there. The
lists of a job's columns, such as ``{job_columns}``, and ``{failing_since}``, are the same for all files.

A comment ``-- Unbounded: …`` marks a query that reads more the larger its table is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from penstock.dataclass import dataclass
from penstock.store.session import Statement
from penstock.store.sql.dialect import Dialect, Placeholders

_HEADER = re.compile(r"^-- (\{?[a-z_]+\}?): (.+)$", re.MULTILINE)
_FORM = re.compile(r"^-- (SQLite|PostgreSQL):.*$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_UNBOUNDED = "-- Unbounded: "
_COMMENT = re.compile(r"--.*$", re.MULTILINE)
# The jobs that a program does not leave to others; of a function that others have as well, all but theirs.
_OURS = (
    "not case when function = any(:shared::text[]) then coalesce(options::jsonb ->> 'program', '') = any(:programs) "
    "else function = any(:others::text[]) end"
)
_COLUMNS = {  # of a job, when it is claimed, of a task, and when it has ended; ``{r.job_columns}`` are those of `r`
    "job": "id, pool, function, kind, args, priority, rank, run_at, options, on_complete",
    "claimed": "id, function, kind, args, run_at, pool, priority, options, on_complete, ending, attempt, enqueued_at",
    "task_job": "id, pool, function, kind, args, priority, rank, run_at, options",
    "ended": "id, pool, function, kind, args, priority, run_at, options, on_complete, attempt, enqueued_at",
}
_FAILING_SINCE = (  # when the first attempt of a job failed that is counted, if that matters to its retry policy
    "case when attempt > 1 and strpos(options, '\"max_duration\"') > 0 "
    "then (attempts::jsonb -> -1 ->> 'failing_since')::timestamptz end as failing_since"
)
_LISTED = re.compile(r"\{([a-z]\.)?([a-z_]+)_columns\}")
_END = re.compile(r";\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Query:
    """One named query: its purpose, its statement, and the names of its parameters, in order."""

    name: str
    purpose: str
    statement: Statement
    parameters: tuple[str, ...]
    then: tuple[Query, ...] = ()  # statements that follow in the same transaction, where a store cannot say all in one

    def args(self, values: Mapping[str, Any]) -> list[Any]:
        """The values that its statement takes, in order."""
        return [values[name] for name in self.parameters]


_loaded: dict[tuple[str, ...], Mapping[str, Query]] = {}


def load_queries(noun: str, dialect: Dialect) -> Mapping[str, Query]:
    """The queries of one noun in one dialect, by name. A program may open many stores: each file is read once."""
    key = (noun, dialect.name, dialect.schema)
    found = _loaded.get(key)
    if found is None:
        file = files("penstock.store.nouns") / f"{noun}.sql"
        found = _loaded[key] = parse_queries(file.read_text(), dialect)
    return found


def parse_queries(text: str, dialect: Dialect) -> Mapping[str, Query]:
    """The queries of a file that exist in a dialect, by name."""
    found: dict[str, Query] = {}
    fragments: dict[str, str] = {}
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    for header, end in zip(headers, ends, strict=True):
        name, body = header[1], _form(text[header.end() : end], dialect)
        if name.startswith("{"):
            fragments[name] = (body or "").strip()
        elif body is not None:
            for fragment, words in fragments.items():  # one may stand in those before it
                body = body.replace(fragment, words)
            body = _LISTED.sub(lambda one: re.sub(r"(?=\b[a-z])", one[1] or "", _COLUMNS[one[2]]), body)
            body = body.replace("{failing_since}", _FAILING_SINCE)
            body = body.replace("{r.failing_since}", re.sub(r"\b(?=(attempts?|options)\b)", "r.", _FAILING_SINCE))
            body = body.replace("{ours}", _OURS).replace("{ours_to_end}", _OURS.replace("function", "on_complete"))
            if name in found:
                raise ValueError(f"Two queries are called {name}.")
            first, *then = _statements(name, header[2], body, dialect)
            found[name] = replace(first, then=tuple(then))
    return MappingProxyType(found)


def _form(body: str, dialect: Dialect) -> str | None:
    """The form of a query in this dialect; None if it exists in the other one only."""
    forms = _FORM.split(body)
    if len(forms) == 1:
        return body
    own = dict(zip(forms[1::2], forms[2::2], strict=True)).get(dialect.title)
    return None if own is None else forms[0] + own


def _statements(name: str, purpose: str, body: str, dialect: Dialect) -> list[Query]:
    bounded = _UNBOUNDED not in body
    texts = [" ".join(text.split()) for text in _END.split(_COMMENT.sub("", body))]
    return [_query(name, purpose, dialect.translate(text), dialect.parameter, bounded) for text in texts if text]


def _query(name: str, purpose: str, sql: str, mark: str, bounded: bool) -> Query:
    placeholders = Placeholders(mark)
    statement = Statement(_PARAMETER.sub(lambda match: placeholders.put(match[1]), sql), bounded=bounded, by_name=True)
    return Query(name, purpose, statement, tuple(placeholders.names))
