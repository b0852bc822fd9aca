"""The abilities and the behaviour of a client, told by the name that it gives."""

from __future__ import annotations

import re

from penstock.dataclass import dataclass
from penstock.wire.outgoing import Format

_MOST_BYTES_READ = 96 * 1024 * 1024  # of a message, by Node; by clients with Rust inside, which come back for ever
_MOST_BYTES_READ_BY_RUST = 15 * 1024 * 1024
_VERSION = re.compile(r"npm-(\d+)\.(\d+)\.")
_CHUNKS_SINCE = (1, 28)


@dataclass(frozen=True, slots=True)
class ClientKind:
    """A kind of client."""

    name: str  # the name that it gives, such as ``npm-1.28.0``
    is_npm: bool  # whether it is Convex's in JavaScript, which keeps a session for life
    most_bytes: int  # the bytes of a result that it reads
    keeps_token: bool  # whether it sends the token that it has after each `AuthError`
    takes_chunks: bool  # whether it takes a long transition in parts
    form: Format  # the form of its values


def kind_of(name: str) -> ClientKind:
    """The kind of a client that calls itself by a name, such as ``npm-1.28.0``."""
    is_npm, version = name.startswith("npm-"), _VERSION.match(name)
    return ClientKind(
        name,
        is_npm,
        _MOST_BYTES_READ if is_npm else _MOST_BYTES_READ_BY_RUST,
        keeps_token=name.startswith("python-"),
        takes_chunks=version is not None and tuple(map(int, version.groups())) >= _CHUNKS_SINCE,
        form=Format.ENCODED if is_npm else Format.TAGGED,
    )
