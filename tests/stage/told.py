"""What was told in log events while a test ran."""

from __future__ import annotations

from typing import Any

import pytest


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    """The facts of the events of a name, in order."""
    return [vars(record)["facts"] for record in caplog.records if getattr(record, "event", "") == name]
