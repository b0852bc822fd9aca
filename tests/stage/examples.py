"""How many examples hypothesis tries: some on each push, always the same ones; many new ones in `make test-long`."""

from __future__ import annotations

import os

LONG = os.environ.get("TESTS_LONG", "") not in {"", "0"}
_PART = 5


def examples(many: int) -> int:
    """So many in a long run, and a part of them on each push."""
    return many if LONG else max(many // _PART, 3)
