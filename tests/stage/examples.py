"""How much a run tries: a few examples of hypothesis, always the same ones, or in `make test-long` many new ones."""

from __future__ import annotations

import os

LONG = os.environ.get("TESTS_LONG", "") not in {"", "0"}
PART = os.environ.get("TESTS_PART", "")  # of a long run: what chooses it, such as the id of a commit
PARTS = 20
_PART = 5


def examples(many: int) -> int:
    """So many in a long run, and a part of them on each push."""
    return many if LONG else max(many // _PART, 3)
