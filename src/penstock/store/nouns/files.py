"""Files at rest: their rows, the bytes that are to be deleted, used tokens, and the rows that claim files."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.files.file import FileField
from penstock.store.nouns.noun import Noun
from penstock.store.session import OpenTransaction
from penstock.store.sql.queries import parse_queries

FILES = "penstock.stored_file"  # as the tables that live queries read are named

# The files, of some, that rows of a table refer to.
_CLAIMED = """
-- id: by a column of ids.
-- Unbounded: it reads the table where the column has no index.
select distinct {column} from {table} r where {column} = any(:ids::text[]);

-- json: in a column of JSON.
-- Unbounded: it reads the table.
select i.id from unnest(:ids::text[]) i (id) where exists (
    select 1 from {table} r where strpos({column}::text, i.id) > 0
);
"""


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file as it is kept."""

    id: str
    created_at: datetime
    key: str  # the name of its bytes
    storage_id: UUID
    size: int
    digest: str
    content_type: str | None
    creator: str | None
    component: str = ""  # whose it is; empty for the program


@dataclass(frozen=True, slots=True)
class Space:
    """The folder of a database among the bytes, and the secret that signs its tokens."""

    name: str
    secret: str


class Files(Noun, queries=("files",)):
    """Files at rest.

    Attributes:
        owes: Whether a transaction of this process has deleted files since the pruner looked.
    """

    owes = False

    async def space(self) -> Space:
        """The space of this database."""
        return self._read(Space, await self._look("space"))[0]

    async def add(self, session: OpenTransaction, row: FileRow) -> None:
        """Add a file, whose bytes are there."""
        await self._fetch(session, "add", **asdict(row))

    async def find(self, session: OpenTransaction | None, file_id: str) -> FileRow | None:
        """A file by its id."""
        return self._one(FileRow, await self._ask(session, "find", id=file_id))

    async def find_url(self, session: OpenTransaction | None, storage_id: UUID) -> FileRow | None:
        """A file by the secret part of its permanent URL."""
        return self._one(FileRow, await self._ask(session, "find_url", storage_id=storage_id))

    async def list(self, session: OpenTransaction, component: str, below: str, limit: int) -> builtins.list[FileRow]:
        """Files of a component, or of the program, whose ids are below one, newest first."""
        found = await self._fetch(session, "page", component=component, below=below, limit=limit)
        return self._read(FileRow, found)

    async def find_existing(self, session: OpenTransaction, ids: Iterable[str]) -> set[str]:
        """The files, of some, that are there."""
        return {file_id for (file_id,) in await self._fetch(session, "existing", ids=[*ids])}

    async def remove(self, session: OpenTransaction, file_id: str) -> bool:
        """Delete a file, and have its bytes deleted once this has committed; False if there is none.

        It only inserts, so that no transaction of users conflicts with a pruner.
        """
        return bool(await self._fetch(session, "remove", id=file_id))

    async def use_token(self, session: OpenTransaction, token_id: str, expires_at: datetime) -> bool:
        """Note that a token that is good for one upload was used; False if it was before."""
        return bool(await self._fetch(session, "use_token", id=token_id, expires_at=expires_at))

    # ----- the pruner's

    async def list_owed(self, limit: int) -> dict[str, str | None]:
        """Some deleted files, with the names of their bytes, which are to go; None if they are gone."""
        return {file_id: key for file_id, key in await self._look("owed", limit=limit)}  # noqa: C416 - rows have names

    async def settle(self, ids: Collection[str]) -> None:
        """Forget deleted files, whose bytes are gone."""
        async with self._writing() as session:
            for query in ("settle", "forget_removals"):
                await self._execute(session, query, ids=[*ids])

    async def find_any(self) -> bool:
        """Whether there are files, or were lately."""
        return bool(await self._look("any_file"))

    async def find_kept(self, keys: Collection[str]) -> set[str]:
        """The names of bytes, of some, that belong to a file."""
        return {key for (key,) in await self._look("kept", keys=[*keys])}

    async def list_unclaimed(self, before: datetime, limit: int) -> builtins.list[str]:
        """Files of before a time that were not found to be claimed, oldest first."""
        return [file_id for (file_id,) in await self._look("unclaimed", before=before, limit=limit)]

    async def claim(self, ids: Collection[str]) -> None:
        """Note that files are claimed."""
        await self._run("claim", ids=[*ids])

    async def find_claimed(
        self, session: OpenTransaction, ids: Collection[str], fields: Iterable[FileField]
    ) -> set[str]:
        """The files, of some, to which rows of users refer by one of these fields."""
        found = set[str]()
        for field in fields:
            if left := [file_id for file_id in ids if file_id not in found]:
                found.update(await self._refer(session, left, field))
        return found

    async def _refer(self, session: OpenTransaction, ids: Sequence[str], field: FileField) -> builtins.list[str]:
        dialect = self._access.dialect
        query, column = parse_queries(_CLAIMED, dialect)[field.form], f"r.{dialect.quote(field.column)}"
        sql = query.statement.sql.replace("{column}", column).replace("{table}", dialect.table(field.table))
        query = replace(query, statement=replace(query.statement, sql=sql))
        return [file_id for (file_id,) in await self._access.fetch(session, query, {"ids": [*ids]})]
