"""Files at rest: their rows, the bytes that are to be deleted, used tokens, and the rows that claim files."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.dataclass import dataclass
from penstock.files.file import FileField
from penstock.store.nouns.noun import Noun
from penstock.store.session import OpenTransaction, Row
from penstock.store.sql.queries import parse_queries

FILES = "penstock.stored_file"  # as the tables that live queries read are named

# The files, of some, that rows of a table refer to; and the rows that do.
_CLAIMED = """
-- id: by a column of ids.
-- Unbounded: it reads the table where the column has no index.
select distinct {column} from {table} r where {column} = any(:ids::text[]);

-- json: in a column of JSON.
-- Unbounded: it reads the table.
select i.id from unnest(:ids::text[]) i (id) where exists (
    select 1 from {table} r where strpos({column}::text, i.id) > 0
);

-- id_rows: by a column of ids.
-- Unbounded: it reads the table where the column has no index.
select {key} from {table} r where {column} = any(:ids::text[]) limit :limit;

-- json_rows: in a column of JSON.
-- Unbounded: it reads the table.
select {key} from {table} r where exists (
    select 1 from unnest(:ids::text[]) i (id) where strpos({column}::text, i.id) > 0
) limit :limit;
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
class _Named:
    """A file by its id and the UUID in its URL."""

    id: str
    storage_id: UUID


@dataclass(frozen=True, slots=True)
class Space:
    """The folder of a database among the bytes, and the secret that signs its tokens."""

    name: str
    secret: str


class Files(Noun, queries=("files",)):
    """Files at rest."""

    owes = False  # whether a transaction of this process has deleted files since the pruner looked

    async def space(self) -> Space:
        """The space of this database."""
        return self._read(Space, await self._look("space"))[0]

    async def add(self, session: OpenTransaction, row: FileRow, *, claimed: bool = False) -> None:
        """Add a file, whose bytes are there."""
        await self._fetch(session, "add", **asdict(row), claimed=claimed)

    async def find(self, session: OpenTransaction | None, file_id: str) -> FileRow | None:
        """A file by its id."""
        return self._one(FileRow, await self._ask(session, "find", id=file_id))

    async def find_url(self, session: OpenTransaction | None, storage_id: UUID) -> FileRow | None:
        """A file by the secret part of its permanent URL."""
        return self._one(FileRow, await self._ask(session, "find_url", storage_id=storage_id))

    async def list(
        self,
        session: OpenTransaction,
        below: str,
        limit: int,
        *,
        of_type: str | None = None,
        component: str | None = None,
    ) -> builtins.list[FileRow]:
        """Files whose ids are below one, newest first; perhaps those of a component, or of types with a text."""
        given = {"below": below, "limit": limit, "type": of_type, "component": component}
        return self._read(FileRow, await self._fetch(session, "page", **given))

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

    async def list_unclaimed(self, before: datetime, limit: int) -> dict[str, str]:
        """Files of before a time that were not found to be claimed, oldest first, with the UUIDs in their URLs."""
        rows = self._read(_Named, await self._look("unclaimed", before=before, limit=limit))
        return {row.id: str(row.storage_id) for row in rows}

    async def claim(self, ids: Collection[str]) -> None:
        """Note that files are claimed."""
        await self._run("claim", ids=[*ids])

    async def find_claimed(
        self, session: OpenTransaction, files: Mapping[str, str], fields: Iterable[FileField]
    ) -> set[str]:
        """The files, of some, to which rows of users refer by one of these fields, by the id or the UUID."""
        names = dict(zip(files, files, strict=True)) | {url: file_id for file_id, url in files.items()}
        found = set[str]()
        for field in fields:
            if left := [name for name, file_id in names.items() if file_id not in found]:
                rows = await self._refer(session, field.form, field, ids=left)
                found.update(names[name] for (name,) in rows)
        return found

    async def find_referrers(
        self, session: OpenTransaction, file: FileRow, field: FileField, key: Iterable[str], limit: int
    ) -> Sequence[Row]:
        """The keys of some rows that refer to a file by a field that is not encrypted."""
        names = [file.id, str(file.storage_id)]
        return await self._refer(session, f"{field.form}_rows", field, key, ids=names, limit=limit)

    async def _refer(
        self, session: OpenTransaction, query_name: str, field: FileField, key: Iterable[str] = (), **values: Any
    ) -> Sequence[Row]:
        dialect = self._access.dialect
        query = parse_queries(_CLAIMED, dialect)[query_name]
        names = {"column": f"r.{dialect.quote(field.column)}", "table": dialect.table(field.table)}
        names["key"] = ", ".join(f"r.{dialect.quote(name)}" for name in key)
        sql = query.statement.sql
        for name, text in names.items():
            sql = sql.replace(f"{{{name}}}", text)
        return await self._access.fetch(session, replace(query, statement=replace(query.statement, sql=sql)), values)
