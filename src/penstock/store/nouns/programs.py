"""What programs have declared."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.store.nouns.noun import Access, Noun


class Programs(Noun):
    """What the programs that run on a database have declared, for those who enqueue in plain SQL."""

    def __init__(self, access: Access) -> None:
        super().__init__(access, "programs")

    async def declare(self, kinds: Mapping[str, str]) -> None:
        """Make functions known: the kind of each by its name. Those of other programs stay."""
        known = {row[0]: row[1] for row in await self._look("declared")}
        new = [{"name": name, "kind": kind} for name, kind in kinds.items() if known.get(name) != kind]
        await self._run_each("declare", new)  # who finds all as it is needs no right to write
