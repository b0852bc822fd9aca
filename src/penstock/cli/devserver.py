"""The server that ``penstock dev`` runs in this folder: its address and its token, for other commands of the same user.

Owns the note of them: a file of the user alone, outside of the project, so that nobody commits it.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # which Windows lacks


class DevServer(NamedTuple):
    url: str
    token: str


def note_server(server: DevServer) -> None:
    """Note a server that runs now; not if somebody else has taken the file."""
    path = _path()
    with suppress(OSError):
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600), "w") as file:
            json.dump(server._asdict(), file)


def find_server() -> DevServer | None:
    """Find the server that was noted last in this folder; it may have ended."""
    with suppress(OSError, ValueError, TypeError), os.fdopen(os.open(_path(), os.O_RDONLY | _NO_LINK)) as file:
        if os.name != "posix" or os.fstat(file.fileno()).st_uid == os.getuid():
            return DevServer(**json.load(file))
    return None


def _path() -> Path:
    folder = blake2b(os.fsencode(Path.cwd()), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"penstock-dev-{folder}.json"
