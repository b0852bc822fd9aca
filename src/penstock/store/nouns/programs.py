"""The declarations of programs, and their functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.functions.programs import Declaration, refuse_clashes
from penstock.store.nouns.noun import Noun
from penstock.store.session import OpenTransaction


class Programs(Noun, queries=("programs",)):
    """The declarations of the programs on a database, and their functions, for callers that enqueue in plain SQL."""

    async def declare(self, kinds: Mapping[str, str]) -> None:
        """Make functions known: the kind of each by its name. Those of other programs stay."""
        known = {row["name"]: row["kind"] for row in await self._look("declared")}
        # In one order, so that programs that start together do not wait for each other in a circle.
        new = [{"name": name, "kind": kind} for name, kind in sorted(kinds.items()) if known.get(name) != kind]
        await self._run_each("declare", new)  # an unchanged declaration needs no right to write

    async def list(self, session: OpenTransaction | None = None) -> Sequence[Declaration]:
        """All declarations."""
        return self._read(Declaration, await self._ask(session, "list"))

    async def register(self, program: str, ours: Sequence[Declaration]) -> Sequence[Declaration]:
        """Store the declarations of a program; all that were stored before.

        Raises:
            ProgramClash: Another program declares one of the names otherwise; nothing was stored.
        """
        known = await self.list()
        unnamed = {(one.noun, one.name) for one in known if program and not one.program}
        if not {*ours}.difference(known) and not any((one.noun, one.name) in unnamed for one in ours):
            return known  # an unchanged declaration takes no lock, and needs no right to write
        async with self._writing() as session:
            await self._fetch(session, "lock")
            known = await self.list(session)
            refuse_clashes(ours, known)
            rows = [{"noun": one.noun, "name": one.name, "spec": one.spec} for one in ours]
            await self._fetch_each(session, "put", rows, program=program)
        return known

    async def forget(self, program: str) -> int:
        """Forget the declarations of a program; how many there were."""
        return len(await self._run("forget", program=program))
