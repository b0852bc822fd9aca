"""Files: the stored ones with their types and sizes, and the rows that refer to one.

The permanent URL of a file is shown to nobody, as anybody with it can read the file. What is shown of one, such as a
picture, comes by a URL that expires.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from penstock.calls.run.storage import LAST_ID
from penstock.dashboard.page import Act, Answer, Page, Role, View
from penstock.dashboard.rows import text_of_key
from penstock.errors import IdInvalid, RowNotFound
from penstock.files.file import FileField, file_fields, is_harmless
from penstock.schema.ids import FILE_PREFIX
from penstock.server.requests import Refused
from penstock.store.nouns.files import FileRow
from penstock.store.session import reading

_LISTED, _REFERRERS = 50, 20

_SHOWN_FOR = timedelta(hours=1)
_EVERY = 10.0  # seconds: it may read tables


async def _load(view: View) -> Mapping[str, Any]:
    files, given = view.backend.engine.store.files, {name: view.word(name) for name in ("type", "file", "after")}
    if given["file"] is not None:
        found = await _find(view, given["file"])
        rows = [] if found is None else [found]
    else:
        async with reading(view.backend.engine.store.begin_read) as session:
            rows = await files.list(session, given["after"] or LAST_ID, _LISTED + 1, of_type=given["type"])
    older = None
    if len(rows) > _LISTED:
        kept = {"type": given["type"]} if given["type"] else {}
        older = urlencode({**kept, "after": rows[_LISTED - 1].id})
    return {"files": rows[:_LISTED], "given": given, "older": older, "filtered": any(given.values())}


async def _load_one(view: View) -> Mapping[str, Any]:
    row = await _find(view, view.require("file"))
    if row is None:
        raise Refused(404, "FileNotFound", "There is no such file.")
    harmless = is_harmless(row.content_type or "")
    url = await view.backend.storage.get_url(row.id, expires_in=_SHOWN_FOR) if harmless else None
    path = None if url is None else url.removeprefix(view.backend.config.public_url)
    return {
        "file": row,
        "path": path,
        "is_picture": harmless and (row.content_type or "").startswith("image/"),
        "referrers": [one async for one in _referrers(view, row)],
        "hidden": [one.name for one in _fields(view) if one.form == "encrypted"],
        "most": _REFERRERS,
    }


async def _find(view: View, name: str) -> FileRow | None:
    """A file by its id or by the UUID in its URL."""
    try:
        found = await view.backend.storage.get_metadata(name)
    except IdInvalid:
        return None
    return None if found is None else await view.backend.engine.store.files.find(None, found.id)


def _fields(view: View) -> list[FileField]:
    return [*file_fields(view.backend.app.definitions())]


async def _referrers(view: View, row: FileRow) -> AsyncIterator[tuple[FileField, str]]:
    """The rows of this program's tables that refer to a file, some of each: the field, and the key of a link."""
    definitions = {one.name: one for one in view.backend.app.definitions()}
    async with reading(view.backend.engine.store.begin_read) as session:
        for field in _fields(view):
            if field.form == "encrypted":
                continue
            key = definitions[field.table].key
            files = view.backend.engine.store.files
            for found in await files.find_referrers(session, row, field, key, _REFERRERS):
                yield field, text_of_key(found[0] if len(key) == 1 else [*found])


async def _delete(view: View) -> Answer:
    row = await _find(view, view.require("file"))
    if row is None:
        raise RowNotFound("The file is gone already.", table=FILE_PREFIX)
    await view.backend.storage.delete(row.id)
    return Answer("The file is deleted. Its bytes go within a minute.", path="/files")


_SURE = "Delete this file? Rows that refer to it stay, and its URL leads nowhere."

PAGES = (
    Page("/files", "Files", "files.html", _load, {}),
    Page(
        "/files/{file}", "File", "file.html", _load_one, {"delete": Act(_delete, Role.edit, _SURE)}, above="/files",
        every=_EVERY,
    ),
)  # fmt: skip
