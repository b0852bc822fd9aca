"""The progress that a running job reports. Owns its checks and its stored form."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from penstock.dataclass import dataclass
from penstock.errors import ValueInvalid
from penstock.values import is_storable

_LONGEST_NOTE = 1000
_LARGEST = 2**53


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that a running job has reported.

    Attributes:
        done: The amount that is done.
        total: The whole amount; None if it is not known.
        note: The present step.
    """

    done: int | float
    total: int | float | None = None
    note: str | None = None


def progress_of(done: Any, total: Any, note: Any) -> Progress:
    for name, value in (("done", done), ("total", 0 if total is None else total)):
        if not (type(value) in {int, float} and math.isfinite(value) and 0 <= value <= _LARGEST):
            raise ValueInvalid(f"progress: {name} must be a number from 0 to {_LARGEST:,}, not {value!r}.")
    if total is not None and done > total:
        raise ValueInvalid(f"progress: {done} are done, of only {total}.", fix="Leave out total if it is not known.")
    if note is not None and not (isinstance(note, str) and len(note) <= _LONGEST_NOTE and is_storable(note)):
        raise ValueInvalid(f"progress: a note is a text of up to {_LONGEST_NOTE:,} characters that can be stored.")
    return Progress(done, total, note)


def progress_text(progress: Progress) -> str:
    return json.dumps({name: value for name, value in asdict(progress).items() if value is not None})


def progress_from(text: str | None) -> Progress | None:
    return None if text is None else Progress(**json.loads(text))
