"""Files in snapshots: their documents as JSON lines, and their bytes as entries of their own.

Bytes are read and written in pieces, and compared with their SHA-256. An imported file keeps its id, its time and the
URL it had, and counts as claimed: rows may refer to it in another way than by a field `Id[File]`.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from tempfile import TemporaryFile
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from penstock.app import Backend
from penstock.calls.run.storage import LAST_ID, read_file, store_bytes
from penstock.cli.data import creation_milliseconds, parse_line, read_creation_time
from penstock.cli.lines import LineRefused, pass_over, show_progress
from penstock.cli.snapshots.archive import Snapshot, SnapshotWriter
from penstock.cli.snapshots.parts import Part
from penstock.errors import ValueInvalid
from penstock.files.file import check_content_type, read_digest
from penstock.schema.ids import FILE_PREFIX, is_id
from penstock.services.filesweep import FileSweep
from penstock.store.nouns.files import FileRow
from penstock.store.objects import PIECE, in_thread
from penstock.store.session import OpenTransaction, reading
from penstock.transaction.transaction import Transaction

_AT_ONCE = 1000  # files that are listed at once


# ----- out


async def export_files(backend: Backend, archive: SnapshotWriter) -> tuple[int, list[str]]:
    """Write all files into a zip: how many, and the ids of files whose bytes are not there as they were stored.

    A file that is deleted meanwhile is passed over, so the documents are written last.
    """
    done, damaged = 0, []
    with TemporaryFile() as documents, show_progress("files", None, size=True) as advance:
        async for row in _every(backend, None, None):
            if await _write(backend, archive, row):
                documents.write(to_json(_document_of(row)) + b"\n")
                done += 1
            elif await backend.engine.store.files.find(None, row.id) is not None:
                damaged.append(row.id)
            advance(row.size)
        documents.seek(0)
        if done:
            with archive.add_documents() as entry:
                entry.writelines(documents)
    return done, damaged


async def _every(backend: Backend, session: OpenTransaction | None, component: str | None) -> AsyncIterator[FileRow]:
    """All files, or those of a component, the newest first, in one transaction or each page in another."""
    files, below = backend.engine.store.files, LAST_ID
    while True:
        if session is not None:
            rows = await files.list(session, below, _AT_ONCE, component=component)
        else:
            async with reading(backend.engine.store.begin_read) as one:
                rows = await files.list(one, below, _AT_ONCE, component=component)
        for row in rows:
            yield row
        if len(rows) < _AT_ONCE:
            return
        below = rows[-1].id


async def _write(backend: Backend, archive: SnapshotWriter, row: FileRow) -> bool:
    """Write the bytes of a file; False if they are not all there."""
    parts = await read_file(backend.engine.objects, row, 0, row.size)
    if parts is None:
        return False
    digest = hashlib.sha256()
    with archive.add_file(row.id) as entry:
        async for part in parts:
            digest.update(part)
            entry.write(part)
    return digest.hexdigest() == row.digest


def _document_of(row: FileRow) -> dict[str, Any]:
    return {
        "_id": row.id,
        "_creationTime": creation_milliseconds(row.created_at),
        "size": row.size,
        "sha256": row.digest,
        "contentType": row.content_type,
        "creator": row.creator,
        "storageId": row.storage_id,
        **({"component": row.component} if row.component else {}),
    }


# ----- in


class FileImport(Part):
    """The import of the files of a snapshot.

    Args:
        backend: Where they go.
        source: The snapshot.
        name: Their folder in it.
        component: The component that gets them. None if penstock wrote the snapshot, which says it of each file.
        convert_id: Makes ids of Convex's; None if penstock wrote the snapshot.
    """

    def __init__(
        self,
        backend: Backend,
        source: Snapshot,
        name: str,
        component: str | None = None,
        convert_id: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(name=name, table=FILE_PREFIX)
        self._backend, self._source, self._component, self._convert_id = backend, source, component, convert_id
        self._files = backend.engine.store.files
        self._keys: dict[str, str] = {}  # the names of stored bytes that wait for the row of their file

    async def find_any(self) -> bool:
        """Whether there are files. Deleted ones go for good now, as the snapshot may bring them back."""
        sweep = FileSweep(self._backend.runner)
        while await sweep.delete_owed() < 1:
            """More may be owed."""
        return await self._files.find_any()

    def check(self) -> None:
        """Read all documents, and count the ones that do not fit."""
        if sum(1 for _ in self._documents(self.refuse)):
            self._backend.engine.objects  # noqa: B018 - a place that cannot be opened is named now

    async def store(self, *, skip_refused: bool, with_rows: bool) -> None:
        """Store the bytes of files that are not there, each with its row, or for `replace`."""
        with show_progress(self.name, None, size=True) as advance:
            for number, old, row in self._documents(pass_over):
                try:
                    await self._store_one(old, row, with_rows=with_rows)
                except ValueInvalid as error:
                    line = LineRefused(number, error.what)
                    if not skip_refused:
                        raise line from error
                    self.refuse(line)
                advance(row.size)

    async def replace(self, transaction: Transaction) -> None:
        """Add the rows of stored bytes, and delete the files that the snapshot does not have."""
        self.stored, kept = 0, set[str]()
        for _number, _old, row in self._documents(pass_over):
            kept.add(row.id)
            if key := self._keys.get(row.id):
                await transaction.add_file(replace(row, key=key), claimed=True)
                self.stored += 1
        async for row in _every(self._backend, transaction, self._component):
            if row.id not in kept:
                await transaction.remove_file(row.id)

    # ----- steps

    def _documents(self, refuse: Callable[[LineRefused], None]) -> Iterator[tuple[int, str, FileRow]]:
        """The files of the snapshot, with their lines and the names of their bytes in it."""
        with self._source.lines(self.name) as lines:
            for piece in lines.pieces(self._read, refuse):
                for number, (old, row) in zip(piece.numbers, piece.rows, strict=True):
                    yield number, old, row

    def _read(self, line: bytes) -> list[Any]:
        """A file's name in the snapshot, and its row without a name of bytes."""
        given = parse_line(line)
        old, url = given.get("_id"), given.get("storageId" if self._convert_id is None else "internalId")
        if not isinstance(old, str):
            raise ValueInvalid("it has no _id.")
        file_id = old if self._convert_id is None else self._convert_id(old)
        if not is_id(FILE_PREFIX, file_id):
            raise ValueInvalid(f"_id: {old!r} is not an id of a file.")
        size = self._source.file_size(old)
        if size is None or size != given.get("size"):
            raise ValueInvalid(f"its bytes are {'not' if size is None else 'not all'} in the snapshot.")
        try:
            storage_id = UUID(url)
        except (TypeError, ValueError, AttributeError):
            raise ValueInvalid(f"{url!r} is no UUID, which its URL ends with.") from None
        return [
            old,
            FileRow(
                file_id,
                read_creation_time(given.get("_creationTime")),
                "",
                storage_id,
                size,
                read_digest(str(given.get("sha256"))).hex(),
                check_content_type(given.get("contentType")),
                given.get("creator"),
                str(given.get("component") or "") if self._component is None else self._component,
            ),
        ]

    async def _store_one(self, old: str, row: FileRow, *, with_rows: bool) -> None:
        there = await self._files.find(None, row.id)
        if there is not None and there.digest == row.digest:
            self.present += 1
            return
        if there is not None or await self._files.find_url(None, row.storage_id) is not None:
            raise ValueInvalid("another file has its id or its URL.")
        with self._source.file(old) as stream:
            parts = in_thread(iter(lambda: stream.read(PIECE), b""))
            stored = await store_bytes(self._backend.runner, parts, bytes.fromhex(row.digest))
        if not with_rows:
            self._keys[row.id] = stored.key
            return
        added = replace(row, key=stored.key)
        await self._backend.runner.write(lambda transaction: transaction.add_file(added, claimed=True))
        self.stored += 1
