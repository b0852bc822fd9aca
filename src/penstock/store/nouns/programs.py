"""The declared functions of programs."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.store.nouns.noun import Access, Noun


class StoredPrograms(Noun):
    """See `store.contract.Programs`."""

    def __init__(self, access: Access) -> None:
        super().__init__(access, "programs")

    async def declare(self, kinds: Mapping[str, str]) -> None:
        known = {row[0]: row[1] for row in await self._look("declared")}
        new = [{"name": name, "kind": kind} for name, kind in kinds.items() if known.get(name) != kind]
        await self._run_each("declare", new)  # an unchanged declaration needs no right to write
