"""Places for the bytes of files, and looks at them: folders, and buckets of a server that speaks S3's protocol."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import obstore
from obstore.store import from_url

from penstock.app import Backend
from penstock.services.filesweep import FileSweep
from penstock.services.pruner import Pruner
from penstock.store.session import Statement, reading

_KEYS = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
    "AWS_TIMEOUT": "300s",  # the server takes long to put a gigabyte together
}
_numbers = itertools.count()
_FILE_ROWS = "select key from penstock.stored_file order by key"


@contextmanager
def bucket() -> Iterator[str]:
    """The URL of a bucket, which the environment has the keys of."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - it takes seconds

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with mock.patch.dict(os.environ, {**_KEYS, "AWS_ENDPOINT_URL": endpoint}):
        import boto3  # noqa: PLC0415 - it takes seconds

        name = f"files-{port}-{next(_numbers)}"  # all servers of a process share their buckets
        boto3.client("s3").create_bucket(Bucket=name)
        try:
            yield f"s3://{name}/of/tests"
        finally:
            server.stop()


@contextmanager
def place_of(kind: str, folder: Path) -> Iterator[str]:
    """A place for bytes: a folder inside of another one, or a bucket."""
    if kind == "folder":
        yield str(folder / "files")
        return
    with bucket() as url:
        yield url


def bytes_in(place: str) -> dict[str, int]:
    """The names and sizes of all that is in a folder or a bucket; what uploads have left as well in a folder."""
    if "://" in place:
        store: Any = from_url(place)
        return {one["path"]: one["size"] for page in obstore.list(store) for one in page}
    sizes = {}
    for one in Path(place).rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
            if one.is_file():
                sizes[str(one.relative_to(place))] = one.stat().st_size
    return sizes


async def keys_of(backend: Backend) -> list[str]:
    """The names of the bytes of all files that have a row."""
    store = backend.engine.store
    async with reading(store.begin_read) as session:
        rows = await session.fetch(Statement(store.dialect.translate(_FILE_ROWS)))
    return [row[0] for row in rows]


async def sweep(backend: Backend) -> None:
    """Make the pruner do all that it has to do for files, as it does over days."""
    files = FileSweep(backend.runner)
    for look in (files.delete_unclaimed, files.delete_owed):
        while await look() < 1:
            pass
    await files.delete_left_over()  # the first look of a process only waits
    while await files.delete_left_over() < 1:
        pass
    await files.delete_owed()


def write_bytes(place: str, name: str, content: bytes) -> None:
    """Put bytes into a folder, behind penstock's back."""
    path = Path(place, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def empty(place: str) -> None:
    """Delete all bytes in a folder."""
    for name in bytes_in(place):
        Path(place, name).unlink()


def make_old(place: str, days: float = 2) -> None:
    """Make all bytes in a folder older."""
    for one in Path(place).rglob("*"):
        if one.is_file():
            then = one.stat().st_mtime - timedelta(days=days).total_seconds()
            os.utime(one, (then, then))


async def prune(backend: Backend) -> None:
    """Make one tick of the pruner, as it follows a commit in its process."""
    pruner = backend.make_service("pruner")
    assert isinstance(pruner, Pruner)
    await pruner.tick()
