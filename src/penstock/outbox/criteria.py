"""The captured changes that are messages, where triggers capture more: stored for each declaration of an outbox.

Changes captured under an older declaration are judged by that one. Owns its text. Leaves
judging to `calls/handlers/deliveries`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.reactive.expression import Condition
from penstock.reactive.signature import read_signature, signature


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCriteria:
    """The captured changes that are messages of one declaration."""

    condition: Condition | None = None  # which rows; None if the triggers say that exactly
    kinds: tuple[str, ...] = ()  # which kinds of changes are messages
    # of which columns one differs in an update that is a message; empty if the triggers see to that
    fields: tuple[str, ...] = ()

    def text(self) -> str:
        """Equal for equal criteria."""
        condition = None if self.condition is None else signature(self.condition)
        return json.dumps({"condition": condition, "kinds": sorted(self.kinds), "fields": list(self.fields)})

    @classmethod
    def parse(cls, text: str) -> MessageCriteria:
        said = json.loads(text)
        condition = None if said["condition"] is None else read_signature(said["condition"])
        return cls(condition=condition, kinds=tuple(said["kinds"]), fields=tuple(said["fields"]))
