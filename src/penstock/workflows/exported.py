"""The history of a run as a file: JSON that a test replays against the code of its day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.errors import ValueInvalid
from penstock.values import encode_json
from penstock.workflows.record import Record, RecordKind
from penstock.workflows.waterfall import Reveal

_VERSION = 1
_FIELDS = [one.name for one in fields(Record)]
_TIMES = ("at", "due_at", "made_at")


def write_history(records: Iterable[Record], reveal: Reveal, **about: Any) -> dict[str, Any]:
    """Make JSON of a history; `about` names its run."""
    written = [_write(record, reveal) for record in sorted(records, key=lambda one: one.number)]
    return {"penstock_history": _VERSION, **about, "records": written}


def _write(record: Record, reveal: Reveal) -> dict[str, Any]:
    form = asdict(record) | {"kind": record.kind.value, "outcome": reveal(record)}
    form |= {name: form[name].isoformat() for name in _TIMES if form[name] is not None}
    form |= {"job": None if record.job is None else str(record.job)}
    return {name: value for name, value in form.items() if value or name in {"number", "place", "learned"}}


def read_records(history: Mapping[str, Any]) -> list[Record]:
    """Read the records of a history.

    Raises:
        ValueInvalid: It is none that `write_history` made.
    """
    if history.get("penstock_history") != _VERSION:
        raise ValueInvalid("This is no history of a run.", fix="Write one with: penstock workflows export RUN")
    try:
        return [_read(form) for form in history["records"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueInvalid(f"The records of this history cannot be read: {error!r}") from error


def _read(form: Mapping[str, Any]) -> Record:
    given: dict[str, Any] = {name: form.get(name) for name in _FIELDS if name in form} | {
        "kind": RecordKind(form["kind"])
    }
    given |= {name: datetime.fromisoformat(form[name]) for name in _TIMES if name in form}
    if "outcome" in form:
        given["outcome"] = encode_json(form["outcome"], "An outcome")
    return Record(**given | {"place": form.get("place")} | ({"job": UUID(form["job"])} if "job" in form else {}))
