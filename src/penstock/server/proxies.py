"""Headers of proxies: who sends a request that one passes on, and for which URL.

Owns which of their headers count. Leaves the addresses of trusted proxies, and of callers, to uvicorn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

_HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_PAIR = re.compile(rb'(?:^|;)\s*([a-z]+)\s*=\s*(?:"([^"]*)"|([^;]*))')
_SCHEMES = {b"http", b"https"}


class ProxyHeaders(ProxyHeadersMiddleware):
    """Takes scheme, host and address of a request from the headers of a proxy that is trusted.

    Uvicorn reads ``x-forwarded-proto`` and ``x-forwarded-for``. To these come ``x-forwarded-host``, and ``forwarded``
    if a proxy sends none of the others. Of several values the last one counts: the nearest proxy has added it.
    """

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        client = scope.get("client")
        if client is not None and client[0] in self.trusted_hosts:
            scheme, host = _read_url(scope["headers"])
            if scheme in _SCHEMES:
                scope["scheme"] = scheme.decode() if scope["type"] == "http" else scheme.decode().replace("http", "ws")
            if _HOST.fullmatch(host):
                others = [header for header in scope["headers"] if header[0] != b"host"]
                scope["headers"] = [(b"host", host), *others]
        await super().__call__(scope, receive, send)


def _read_url(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """The scheme and the host that a proxy names; empty if it does not, or if the scheme is uvicorn's to read."""
    given = dict(headers)
    host = given.get(b"x-forwarded-host", b"").rpartition(b",")[2].strip()
    if any(name.startswith(b"x-forwarded-") for name in given) or b"forwarded" not in given:
        return b"", host
    last = given[b"forwarded"].rpartition(b",")[2].lower()
    pairs = {name: quoted or plain.strip() for name, quoted, plain in _PAIR.findall(last)}
    return pairs.get(b"proto", b""), pairs.get(b"host", b"")
