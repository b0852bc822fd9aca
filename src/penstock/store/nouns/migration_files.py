"""The migration files of programs, as far as they were run on a database."""

from __future__ import annotations

import builtins
from contextlib import AbstractAsyncContextManager

from penstock.store.contract.session import OpenTransaction, Session
from penstock.store.nouns.noun import Noun


class MigrationFiles(Noun, queries=("migration_files",)):
    """The progress of each migration file, as text. It moves by compare-and-set, so that two processes may run one."""

    async def list(self) -> builtins.list[tuple[str, str]]:
        """Name and progress of each file that was begun, in order."""
        return [(row[0], row[1]) for row in await self._look("list")]

    async def begin(self, name: str, progress: str) -> None:
        """Note that a file was begun, unless it is noted already."""
        await self._run("begin", name=name, progress=progress)

    async def advance(self, session: OpenTransaction, name: str, before: str, after: str | None) -> bool:
        """Note progress, or with None forget the file; False if another process has noted other progress."""
        if after is None:
            return bool(await self._fetch(session, "forget", name=name, before=before))
        return bool(await self._fetch(session, "advance", name=name, before=before, after=after))

    def transaction(self) -> AbstractAsyncContextManager[Session]:
        """A transaction for a piece of a file; it commits at the end of the block."""
        return self._writing()
