"""The bytes of files: in a folder, or in a bucket of an object store, through obstore.

A name of bytes begins with the space of its database and the day. Bytes are whole and durable once `put` returns; they
are of no file until a row says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from penstock.dataclass import dataclass
from penstock.errors import ConfigError, TryAgain, of_extra

PIECE = 1024 * 1024  # bytes that are read at once

_PART = 5 * 1024 * 1024  # bytes that are sent at once: the least that buckets take
_MOST_PARTS = 10_000
_MEMORY = "memory://"
_AT_ONCE = 1000  # names that are listed at once


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes that are there."""

    key: str
    size: int
    sha256: bytes


class Objects:
    """The bytes of all files of one database.

    Args:
        url: The setting ``files``: a folder, or the URL of a bucket.
        most: The most bytes of a file.

    Raises:
        ConfigError: obstore is not installed, or there can be no such bucket.
    """

    def __init__(self, url: str, most: int) -> None:
        with of_extra("files", "ctx.storage", {"obstore"}):
            self._obstore: Any = importlib.import_module("obstore")
            stores: Any = importlib.import_module("obstore.store")
        self._folder = None if "://" in url else Path(url).absolute()
        self._part = max(_PART, most // _MOST_PARTS + 1)
        self._is_new = self._folder is not None and not self._folder.exists()
        try:
            if self._folder is not None:
                self._store: Any = stores.LocalStore(self._folder, mkdir=True)
            else:
                self._store = stores.MemoryStore() if url == _MEMORY else stores.from_url(url)
        except Exception as error:
            raise ConfigError(
                f"files={url!r} cannot be opened: {_first_line(error)}.",
                fix="Write a folder, or a bucket such as s3://name/folder, whose keys the environment holds.",
            ) from error

    async def put(self, key: str, parts: AsyncIterator[bytes]) -> Stored:
        """Store bytes as they come, in parts; if anything fails, nothing of them is left.

        Raises:
            TryAgain: They cannot be stored now.
        """
        digest, size, failed = hashlib.sha256(), 0, None

        async def count() -> AsyncIterator[bytes]:
            nonlocal size, failed
            try:
                async for part in parts:
                    if part:
                        digest.update(part)
                        size += len(part)
                        yield part
            except Exception as error:
                failed = error
                raise

        options = {"use_multipart": True, "chunk_size": self._part, "max_concurrency": 1}
        try:
            with self._translating("stored"):
                await self._obstore.put_async(self._store, key, count(), **options)
                if self._folder is not None:
                    await asyncio.to_thread(self._sync, key)
        except TryAgain:
            if failed is not None:  # what gives the parts has failed, and not the place
                raise failed from None
            raise
        return Stored(key, size, digest.digest())

    async def read(self, key: str, start: int, end: int) -> AsyncIterator[bytes] | None:
        """The bytes from one place to another, in pieces; None if they are not there."""
        with self._translating("read"):
            try:
                found = await self._obstore.get_async(self._store, key, options={"range": (start, end)})
            except FileNotFoundError:
                return None
        stream: AsyncIterator[Any] = found.stream(min_chunk_size=PIECE)
        return _pieces(stream)

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete bytes, whether they are there or not."""
        with self._translating("deleted"):
            for key in keys:
                with suppress(FileNotFoundError):
                    await self._obstore.delete_async(self._store, key)

    async def list(self, space: str, before: datetime) -> AsyncIterator[list[str]]:
        """The names of bytes that were complete before a time, in pieces."""
        with self._translating("listed"):
            async for page in self._obstore.list(self._store, space, chunk_size=_AT_ONCE):
                yield [one["path"] for one in page if one["last_modified"] < before]

    async def sweep_parts(self, space: str, before: datetime) -> int:
        """Delete what uploads have left in a folder that a crash cut off before a time; how many parts.

        A bucket hides these; its own lifecycle rule deletes them.
        """
        folder = self._folder
        return 0 if folder is None else await asyncio.to_thread(_sweep_parts, folder / space, before.timestamp())

    # ----- steps

    def _sync(self, key: str) -> None:
        """Have the machine write a file to its disk, and the folders that lead to it."""
        assert self._folder is not None  # noqa: S101 - for type checkers
        path = self._folder / key
        inside = [path, *path.parents][: len(path.relative_to(self._folder).parts) + 1]
        for one in (*inside, *((self._folder.parent,) if self._is_new else ())):
            number = os.open(one, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
        self._is_new = False

    @contextmanager
    def _translating(self, done: str) -> Iterator[None]:
        """Tell errors of the place where the bytes are as `TryAgain`."""
        try:
            yield
        except (self._obstore.exceptions.BaseError, OSError) as error:
            raise TryAgain(
                f"The bytes of a file cannot be {done} now: {_first_line(error)}.",
                fix="Try again; or look whether the folder or the bucket of the setting files is there and has room.",
            ) from error


async def _pieces(stream: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for piece in stream:
        yield bytes(piece)


def _sweep_parts(folder: Path, before: float) -> int:
    swept = 0
    for one in folder.rglob("*#*"):
        with suppress(FileNotFoundError):  # a part that obstore deletes, as its upload is cancelled
            if one.stat().st_mtime < before:
                one.unlink()
                swept += 1
    return swept


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(".") or type(error).__name__


async def in_thread(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Iterate in a thread, as that may read a file, or wait for the event loop."""
    rest, ended = iter(parts), object()
    while (part := await asyncio.to_thread(next, rest, ended)) is not ended:
        yield cast("bytes", part)
