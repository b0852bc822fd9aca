"""An act of a person, between the two writes to the audit log. An act that cannot be logged is not done."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from penstock.calls.run.engine import Engine
from penstock.dataclass import dataclass
from penstock.errors import PenstockError
from penstock.observe.logs import event


@dataclass(slots=True)
class Outcome:
    """How an act ended, as the audit log tells it."""

    told: str = "Not done: an unexpected error."


@asynccontextmanager
async def audit(engine: Engine, who: str, role: str, act: str, about: Mapping[str, Any]) -> AsyncIterator[Outcome]:
    """Log an act, for a block that does it and says how it ended.

    Args:
        engine: The store and the clock.
        who: Who does it.
        role: In which role.
        act: The name of the act.
        about: What it is about, without secrets.
    """
    act_id, outcome = UUID(int=engine.clock.uuid7()), Outcome()
    await engine.store.audit.begin(act_id, engine.clock.now(), who, role, act, about)
    try:
        yield outcome
    except PenstockError as error:
        outcome.told = f"Not done: {error}"
        raise
    finally:
        event("audit.act", logging.INFO, who=who, act=act, about=about, outcome=outcome.told)
        await engine.store.audit.end(act_id, outcome.told)
