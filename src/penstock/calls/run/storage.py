"""`ctx.storage`: files. Their rows are part of transactions; their bytes are stored before a row, and deleted after it.

Owns the order of these steps. The pruner (`services/filesweep`) deletes bytes that belong to no file.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from hashlib import sha256 as sha256_of
from typing import Any, Protocol, cast, runtime_checkable
from uuid import UUID

from penstock.calls.enqueue.jobs import JobCalls
from penstock.calls.run.attempts import Attempts
from penstock.clock import secret
from penstock.errors import IdInvalid, LimitExceeded, RowNotFound, TokenInvalid, ValueInvalid
from penstock.files.file import File, check_content_type, read_digest
from penstock.files.tokens import FileToken, sign
from penstock.identity.caller import Caller
from penstock.observe import points
from penstock.schema.ids import FILE_PREFIX, Id, format_id, is_id, is_storage_id
from penstock.store.nouns.files import FileRow
from penstock.store.objects import PIECE, Objects, Stored, in_thread
from penstock.transaction.tracking import track_calls
from penstock.transaction.transaction import Transaction

PATH = "/api/storage"
UPLOAD_FOR = timedelta(hours=1)  # how long an upload token is good, and how long an upload may take

LAST_ID = f"{FILE_PREFIX}_8"  # above all ids
_ROW_BYTES = 400  # of a file's row, about


@runtime_checkable
class Readable(Protocol):
    """A file object that gives bytes."""

    def read(self, size: int, /) -> bytes:
        """At most this many bytes; none at the end."""


Content = bytes | bytearray | memoryview | AsyncIterable[bytes] | Iterable[bytes] | Readable


class OpenFile:
    """The bytes of a file: ``async for part in opened``, or ``await opened.read()`` for all of them."""

    def __init__(self, file: File, parts: AsyncIterator[bytes]) -> None:
        self._file = file
        self._parts = parts

    @property
    def file(self) -> File:
        """The facts of the file."""
        return self._file

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    async def read(self) -> bytes:
        """All bytes that are left, in memory."""
        return b"".join([part async for part in self._parts])


class StorageReader:
    """The files of a program, or of a component."""

    __slots__ = ("_caller", "_calls")

    def __init__(self, calls: JobCalls, caller: Caller) -> None:
        self._calls = calls
        self._caller = caller

    @track_calls
    async def get_url(self, file_id: Id[File] | str, *, expires_in: timedelta | None = None) -> str | None:
        """The URL of a file; None if there is none. A live query runs again when the file is deleted.

        Args:
            file_id: Its id.
            expires_in: The longest time for which the URL is good, from a minute to a year; it is good for half of it
                at least, as all who ask meanwhile get one URL. A live query runs again before it expires. By default
                the URL is good until the file is deleted, for everybody who knows it.

        Raises:
            IdInvalid: It is no id of a file.
            ValueInvalid: The time cannot be.
        """
        if expires_in is not None and not timedelta(minutes=1) <= expires_in <= timedelta(days=366):
            raise ValueInvalid(f"A URL cannot expire in {expires_in}.", fix="Pass from a minute to a year.")
        row = await self._find(file_id)
        if row is None:
            return None
        base = f"{self._calls.engine.config.public_url}{PATH}"
        if expires_in is None:
            return f"{base}/{row.storage_id}"
        now = await self._time(expires_in / 2)
        token = FileToken("read", now + expires_in, file=row.id)
        return f"{base}/{row.id}?token={sign(token, await self._secret())}"

    @track_calls
    async def get_metadata(self, file_id: Id[File] | str) -> File | None:
        """The facts of a file; None if there is none.

        Raises:
            IdInvalid: It is no id of a file.
        """
        row = await self._find(file_id)
        return None if row is None else file_of(row)

    @track_calls
    async def list(self, limit: int = 100, *, before: Id[File] | None = None) -> list[File]:
        """Files, the newest first. A live query that lists them looks again every few seconds.

        Args:
            limit: The most files, up to 1,000.
            before: List the ones that are older than this file.

        Raises:
            ValueInvalid: The limit cannot be.
        """
        if not 1 <= limit <= 1000:  # noqa: PLR2004 - as the docstring says
            raise ValueInvalid(f"storage.list takes a limit from 1 to 1,000, not {limit}.")
        below = LAST_ID if before is None else _check_id(before)

        async def look(session: Any) -> list[FileRow]:
            rows = await self._calls.store.files.list(session, below, limit, component=self._component)
            if isinstance(session, Transaction):
                session.count_read(len(rows), _ROW_BYTES * len(rows))
                session.read_set.untold = True
            return rows

        return [file_of(row) for row in await self._calls.read(look, ())]

    @property
    def _component(self) -> str:
        """The name of the component whose files they are; empty for the program."""
        return "" if self._calls.component is None else self._calls.component.name

    async def _find(self, file_id: object) -> FileRow | None:
        files, storage_id = self._calls.store.files, _storage_id(file_id)
        given = "" if storage_id is not None else _check_id(file_id)

        async def look(session: Any) -> FileRow | None:
            row = await (files.find(session, given) if storage_id is None else files.find_url(session, storage_id))
            row = row if row is not None and row.component == self._component else None
            if isinstance(session, Transaction):
                session.count_read(1, _ROW_BYTES)
                session.read_set.note_file(row.id if row is not None else given, exists=row is not None)
            return row

        return await self._calls.read(look, ())

    async def _time(self, every: timedelta) -> datetime:
        """The time, rounded down; a query runs again at the next multiple."""

        async def look(session: Any) -> datetime:
            return session.time(every) if isinstance(session, Transaction) else self._calls.now()

        return await self._calls.read(look, ())

    async def _secret(self) -> str:
        return (await self._calls.engine.file_space()).secret


class StorageWriter(StorageReader):
    """The files of a program, in its transaction."""

    __slots__ = ()

    @track_calls
    async def generate_upload_url(self, *, max_bytes: int | None = None, single_use: bool = False) -> str:
        """A URL to which a client may POST the bytes of a file within an hour; it answers ``{"storageId": id}``.

        Args:
            max_bytes: The most bytes of the file; by default those of the setting ``max_file_bytes``.
            single_use: Whether only one upload may succeed. By default a client that got no answer sends it again.

        Raises:
            ConfigError: The packages of the extra ``files`` are not installed.
            ValueInvalid: `max_bytes` cannot be.
        """
        engine = self._calls.engine
        engine.objects  # noqa: B018 - what cannot be uploaded is refused now
        if max_bytes is not None and max_bytes < 0:
            raise ValueInvalid(f"max_bytes cannot be {max_bytes}.")
        once = f"{engine.clock.uuid7():032x}" if single_use else None
        token = self._allow(self._calls.now() + UPLOAD_FOR, max_bytes, once)
        return f"{engine.config.public_url}{PATH}/upload?token={sign(token, await self._secret())}"

    def _allow(self, until: datetime, max_bytes: int | None = None, once: str | None = None) -> FileToken:
        """The permission to upload a file of this caller's, and of this component's."""
        creator = _creator(self._caller)
        return FileToken("upload", until, max_bytes=max_bytes, once=once, creator=creator, component=self._component)

    @track_calls
    async def delete(self, file_id: Id[File] | str) -> None:
        """Delete a file, if the transaction commits; its bytes are deleted after that.

        Raises:
            RowNotFound: There is no such file.
            IdInvalid: It is no id of a file.
        """
        row = await self._find(file_id)
        if row is None or not await self._calls.write(lambda transaction: transaction.remove_file(row.id)):
            raise RowNotFound(f"There is no file {file_id}.", table="file", id=str(file_id))


class Storage(StorageWriter):
    """The files of a program, for an action: each call is a transaction of its own."""

    __slots__ = ()

    @track_calls
    async def store(self, content: Content, *, content_type: str | None = None, sha256: str | None = None) -> Id[File]:
        """Store a file; its id. Its bytes are durable before its row commits.

        Args:
            content: Bytes; or what gives them in parts, so that they need not be in memory together: an asynchronous
                iterator, an iterable, or a file object that was opened for bytes.
            content_type: Its type, such as ``image/png``.
            sha256: The digest that the bytes must have, in base64 or in hexadecimal.

        Raises:
            ConfigError: The packages of the extra ``files`` are not installed.
            LimitExceeded: It has more bytes than the setting ``max_file_bytes`` allows.
            ValueInvalid: The type cannot be, the digest is another one, or the content does not give bytes.
            TryAgain: The bytes cannot be stored now.
        """
        digest = None if sha256 is None else read_digest(sha256)
        token = self._allow(datetime.max.replace(tzinfo=UTC))
        kind = check_content_type(content_type)
        return await store_file(self._calls.runner, _parts_of(content), token, kind, digest)

    @track_calls
    async def open(self, file_id: Id[File] | str) -> OpenFile | None:
        """The bytes of a file, in pieces of about a megabyte; None if there is none.

        Raises:
            ConfigError: The packages of the extra ``files`` are not installed.
            IdInvalid: It is no id of a file.
            TryAgain: The bytes cannot be read now.
        """
        row = await self._find(file_id)
        parts = None if row is None else await read_file(self._calls.engine.objects, row, 0, row.size)
        return None if row is None or parts is None else OpenFile(file_of(row), parts)


async def store_file(
    runner: Attempts, parts: AsyncIterator[bytes], token: FileToken, content_type: str | None, digest: bytes | None
) -> Id[File]:
    """Store bytes, and then the row of their file; its id.

    Without a row the bytes are of no file, and the pruner deletes them a day later: also where nobody knows whether the
    row has committed.

    Raises:
        LimitExceeded: The token, or the setting, allows fewer bytes.
        TokenInvalid: The token was used, and may be used once.
        ValueInvalid: The bytes have another digest.
        TryAgain: They cannot be stored now.
    """
    engine, limit = runner.engine, runner.engine.config.max_file_bytes
    limit = limit if token.max_bytes is None else min(limit, token.max_bytes)
    stored = await store_bytes(runner, _limit(parts, limit), digest)
    row = FileRow(
        format_id(FILE_PREFIX, engine.clock.uuid7()),
        runner.now(),
        stored.key,
        UUID(bytes=sha256_of(secret().encode()).digest()[:16], version=4),
        stored.size,
        stored.sha256.hex(),
        content_type,
        token.creator,
        token.component,
    )

    async def add(transaction: Transaction) -> bool:
        files = engine.store.files
        if token.once is not None and not await files.use_token(transaction, token.once, token.expires_at):
            return False
        await transaction.add_file(row)
        return True

    if not await runner.write(add):
        await engine.objects.delete([stored.key])
        raise TokenInvalid("This token was used, and may be used once.", fix="Ask for another URL.")
    return Id(row.id)


async def store_bytes(runner: Attempts, parts: AsyncIterator[bytes], digest: bytes | None) -> Stored:
    """Store bytes, which are of no file until a row says so.

    Raises:
        ValueInvalid: They have another digest.
        TryAgain: They cannot be stored now.
    """
    engine, space = runner.engine, await runner.engine.file_space()
    key = f"{space.name}/{runner.now():%Y-%m-%d}/{engine.clock.uuid7():032x}"
    stored = await engine.objects.put(key, parts)
    if points.armed:
        await points.reach("file.stored", key=key)
    if digest is not None and digest != stored.sha256:
        await engine.objects.delete([key])
        raise ValueInvalid("The bytes of the file have another SHA-256 than its sender says.", fix="Send it again.")
    return stored


async def read_file(objects: Objects, row: FileRow, start: int, end: int) -> AsyncIterator[bytes] | None:
    """The bytes of a file from one place to another; None if they are not there."""
    return _nothing() if start >= end else await objects.read(row.key, start, end)


def file_of(row: FileRow) -> File:
    """A file as programs see it."""
    return File(
        id=Id(row.id),
        creation_time=row.created_at,
        size=row.size,
        sha256=row.digest,
        content_type=row.content_type,
        creator=row.creator,
        storage_id=str(row.storage_id),
    )


# ----- steps


def _creator(caller: Caller) -> str | None:
    return None if caller.identity is None else caller.identity.token_identifier


def _check_id(file_id: object) -> str:
    if not isinstance(file_id, str) or not is_id(FILE_PREFIX, file_id):
        raise IdInvalid(
            f"{str(file_id)[:100]!r} is not an id of a file.", fix=f"Pass an id that begins with {FILE_PREFIX}_."
        )
    return str(file_id)


def _storage_id(file_id: object) -> UUID | None:
    """The secret part of a URL, which stands for a file as well; None if it is none."""
    return UUID(file_id) if isinstance(file_id, str) and is_storage_id(file_id) else None


async def _limit(parts: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    size = 0
    async for part in parts:
        given: object = part
        if not isinstance(given, bytes | bytearray | memoryview):
            raise ValueInvalid(f"storage.store takes bytes, not {type(given).__name__}.", fix="Encode text first.")
        size += len(part)
        if size > limit:
            raise LimitExceeded(f"A file may have {limit} bytes here.", fix="Send a smaller one.", limit=limit)
        yield bytes(part)


def _parts_of(content: Any) -> AsyncIterator[bytes]:
    """Content that is to be stored, in parts."""
    if isinstance(content, bytes | bytearray | memoryview):
        return in_thread([bytes(content)])
    if isinstance(content, AsyncIterable):
        return cast("AsyncIterator[bytes]", aiter(content))
    if isinstance(content, Readable):
        return in_thread(iter(lambda: content.read(PIECE), b""))
    if isinstance(content, Iterable) and not isinstance(content, str):
        return in_thread(content)
    raise ValueInvalid(f"storage.store takes bytes, not {type(content).__name__}.", fix="Encode text first.")


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""  # a generator that gives nothing
