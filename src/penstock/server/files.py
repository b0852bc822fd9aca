"""Files over HTTP: takes uploads with a token, and sends files to everybody who knows their URL.

Owns the limits of both: how many uploads go on, and how long a client may be silent. Leaves the order of bytes and rows
to `calls/run/storage`. Requests and answers are those of Convex, with ETags in addition.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic_core import to_json
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from penstock.app import Backend
from penstock.calls.run.storage import UPLOAD_FOR, read_file, store_file
from penstock.errors import LimitExceeded, Overloaded, TokenExpired, TokenInvalid, ValueInvalid
from penstock.files.file import ANY_TYPE, check_content_type, digest_header, digest_of, is_harmless
from penstock.files.tokens import FileToken, Purpose, read_token
from penstock.observe.logs import event
from penstock.schema.ids import FILE_PREFIX, is_id
from penstock.server.requests import LINGER, Refused, body_too_large
from penstock.store.nouns.files import FileRow

_MOST_UPLOADS = 64  # at once in a process: each takes up to some megabytes of memory
_SILENCE = 60.0  # seconds for one part of a body
_LATE = "The body did not arrive in time."
_FOR_EVER = 30 * 86_400  # seconds for which a browser keeps a file; its URL never shows another one
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_NO_SCRIPTS = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
_NOT_FOUND = "There is no such file."
_LOOK = "Look whether the setting files is right."


class FileDoor:
    """The endpoints below ``/api/storage``."""

    def __init__(self) -> None:
        self._uploads = 0

    async def upload(self, request: Request, backend: Backend) -> bytes:
        """Store the body of a request; the answer with the id of its file.

        Raises:
            Refused, TryAgain: It cannot be stored.
        """
        token = await _read_token(request, backend, "upload")
        try:
            content_type = check_content_type(request.headers.get("content-type"))
            digest = digest_of(request.headers.get("digest", ""))
        except ValueInvalid as error:
            raise Refused(400, "BadRequest", str(error)) from error
        limit = backend.config.max_file_bytes if token.max_bytes is None else token.max_bytes
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            if "expect" not in request.headers:  # its client waits for leave to send
                await _drain(request.receive)
            raise body_too_large(limit)
        if self._uploads >= _MOST_UPLOADS:
            raise Overloaded("This server takes as many uploads as it may.", fix="Try again in a moment.")
        self._uploads += 1
        try:
            file_id = await store_file(backend.runner, _parts(request, backend), token, content_type, digest)
        except ValueInvalid as error:
            raise Refused(400, "Sha256Mismatch", str(error)) from error
        except LimitExceeded as error:
            await _drain(request.receive)
            raise body_too_large(error.facts["limit"]) from error
        except TokenInvalid as error:
            raise Refused(401, "StorageTokenUsed", str(error)) from error
        finally:
            self._uploads -= 1
        return to_json({"storageId": file_id})

    async def download(self, request: Request, backend: Backend) -> Response:
        """Send a file, or one range of it.

        Raises:
            Refused, TryAgain: It cannot be sent.
        """
        row, until = await _find(request, backend)
        headers = _headers(row, None if until is None else until - backend.engine.clock.now())
        if _is_known(request.headers, headers["etag"]):
            return Response(status_code=304, headers=headers)
        start, end = _range_of(request.headers, row, headers["etag"])
        status = 200
        if (start, end) != (0, row.size) or (row.size and _asks_range(request.headers, headers["etag"])):
            status, headers["content-range"] = 206, f"bytes {start}-{end - 1}/{row.size}"
        else:
            headers["digest"] = digest_header(row.digest)
        headers |= {"content-length": str(end - start), "content-type": row.content_type or ANY_TYPE}
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers)
        parts = await read_file(backend.engine.objects, row, start, end)
        if parts is None:
            event("file.missing", logging.WARNING, file=row.id, key=row.key, fix=_LOOK)
            raise Refused(404, "FileNotFound", _NOT_FOUND)
        return _Sent(parts, status, headers)


class _Sent(StreamingResponse):
    """The bytes of a file, for a client that takes them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_patiently(message: Message) -> None:
            async with asyncio.timeout(_SILENCE):
                await send(message)

        with suppress(TimeoutError, ClientDisconnect):  # the server closes a connection whose answer is not complete
            await super().__call__(scope, receive, send_patiently)


# ----- steps


async def _read_token(request: Request, backend: Backend, purpose: Purpose) -> FileToken:
    secret = (await backend.engine.file_space()).secret
    try:
        return read_token(request.query_params.get("token", ""), purpose, secret, backend.engine.clock.now())
    except TokenInvalid as error:
        raise Refused(401, "StorageTokenInvalid", str(error)) from error
    except TokenExpired as error:
        raise Refused(401, "StorageTokenExpired", str(error)) from error


async def _parts(request: Request, backend: Backend) -> AsyncIterator[bytes]:
    """The body of a request.

    Raises:
        Refused: Its client has left, or is too slow.
    """
    machine = backend.engine.machine
    ends_at, more = machine.monotonic() + UPLOAD_FOR.total_seconds(), True
    while more:
        try:
            async with asyncio.timeout(min(_SILENCE, ends_at - machine.monotonic())):
                message = await request.receive()
        except TimeoutError as error:
            raise Refused(408, "RequestTimeout", _LATE, {"connection": "close"}) from error
        if message["type"] == "http.disconnect":
            raise Refused(499, "ClientDisconnected", "The caller went away.")
        more = message.get("more_body", False)
        yield message.get("body", b"")


async def _drain(receive: Receive) -> None:
    """Throw away the rest of a body, within bounds, so that its sender sees the answer."""
    size, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(_SILENCE):
            while more and size <= LINGER:
                message = await receive()
                size, more = size + len(message.get("body", b"")), message.get("more_body", False)


async def _find(request: Request, backend: Backend) -> tuple[FileRow, datetime | None]:
    """The file that a URL names, and until when it does."""
    name, files, until = request.path_params["name"], backend.engine.store.files, None
    if is_id(FILE_PREFIX, name):
        token = await _read_token(request, backend, "read")
        row = await files.find(None, name) if token.file == name else None
        until = token.expires_at
    else:
        try:
            row = await files.find_url(None, UUID(name))
        except ValueError as error:
            raise Refused(400, "InvalidStoragePath", "This is no URL that get_url gives.") from error
    if row is None:
        raise Refused(404, "FileNotFound", _NOT_FOUND)
    return row, until


def _headers(row: FileRow, left: timedelta | None) -> dict[str, str]:
    age = _FOR_EVER if left is None else max(0, int(left.total_seconds()))
    found = {
        "accept-ranges": "bytes",
        "cache-control": f"private, max-age={age}",
        "etag": f'"{row.digest}"',
        "x-content-type-options": "nosniff",
    }
    if not is_harmless(row.content_type or ANY_TYPE):
        found["content-security-policy"] = _NO_SCRIPTS
    return found


def _is_known(headers: Headers, etag: str) -> bool:
    """Whether a client says that it has the file."""
    given = headers.get("if-none-match", "")
    return given.strip() == "*" or etag in {one.strip().removeprefix("W/") for one in given.split(",")}


def _asks_range(headers: Headers, etag: str) -> bool:
    """Whether a client asks for a part of the file that it has begun to read, or of any."""
    return headers.get("range", "").startswith("bytes=") and headers.get("if-range", etag) == etag


def _range_of(headers: Headers, row: FileRow, etag: str) -> tuple[int, int]:
    """The part of a file that a request asks for.

    Raises:
        Refused: There is no such part, or it asks for several.
    """
    if not row.size or not _asks_range(headers, etag):
        return 0, row.size
    found: Any = _RANGE.fullmatch(headers["range"].replace(" ", ""))
    first, last = ("", "") if found is None else found.groups()
    if first:
        start, end = int(first), min(row.size, int(last or row.size - 1) + 1)
    else:
        start, end = row.size - min(row.size, int(last or 0)), row.size
    if start >= end:
        what, said = "The file has no such range, or the request asks for several.", f"bytes */{row.size}"
        raise Refused(416, "RangeNotSatisfiable", what, {"content-range": said})
    return start, end
