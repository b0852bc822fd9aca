"""Loads named queries from .sql files: a line ``-- name: purpose`` and the SQL below it, with ``:named`` parameters.

Owns the file format. Both stores have the same names and parameters; a test compares them. A comment
``-- Unbounded: …`` marks a query that reads more the larger its table is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from penstock.store.contract.session import Statement
from penstock.store.sql.dialect import Placeholders

_HEADER = re.compile(r"^-- ([a-z_]+): (.+)$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_UNBOUNDED = "-- Unbounded: "
_COMMENT = re.compile(r"--.*$", re.MULTILINE)


@dataclass(frozen=True)
class Query:
    """One named query, with the names of its parameters in order."""

    name: str
    purpose: str
    statement: Statement
    parameters: tuple[str, ...]

    def args(self, values: Mapping[str, Any]) -> list[Any]:
        """The values that its statement takes, in order."""
        return [values[name] for name in self.parameters]


@cache  # a program may open many stores, and a store reads some files for several of its parts
def load_queries(package: str, noun: str, parameter: str) -> Mapping[str, Query]:
    """The queries of one noun, by name: those of ``sql/<noun>.sql`` in the store's package.

    `parameter` is the mark of a parameter, as `dialect.placeholder` takes it.
    """
    text = (files(package) / "sql" / f"{noun}.sql").read_text()
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    found = {
        header[1]: _query(header[1], header[2], text[header.end() : end], parameter)
        for header, end in zip(headers, ends, strict=True)
    }
    return MappingProxyType(found)


def _query(name: str, purpose: str, body: str, mark: str) -> Query:
    sql = " ".join(_COMMENT.sub("", body).split()).rstrip(";")
    placeholders = Placeholders(mark)
    statement = Statement(_PARAMETER.sub(lambda match: placeholders.put(match[1]), sql), bounded=_UNBOUNDED not in body)
    return Query(name, purpose, statement, tuple(placeholders.names))
