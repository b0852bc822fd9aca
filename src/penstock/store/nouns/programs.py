"""The declared functions of programs."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.store.nouns.noun import Noun


class Programs(Noun, queries=("programs",)):
    """The functions that programs on a database have declared, for callers that enqueue in plain SQL."""

    async def declare(self, kinds: Mapping[str, str]) -> None:
        """Make functions known: the kind of each by its name. Those of other programs stay."""
        known = {row[0]: row[1] for row in await self._look("declared")}
        new = [{"name": name, "kind": kind} for name, kind in kinds.items() if known.get(name) != kind]
        await self._run_each("declare", new)  # an unchanged declaration needs no right to write
