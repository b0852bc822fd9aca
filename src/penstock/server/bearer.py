"""Bearer tokens: whether a request brings the one that a setting names.

Owns the comparison. Leaves to each door what is answered to whom.
"""

from __future__ import annotations

import hmac

from starlette.requests import Request


def brings(request: Request, token: str) -> bool:
    """Whether a request brings a token; how long that takes tells nothing of how much of it is right."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    wanted = token.encode("utf-8", "surrogateescape")  # as it stood in the environment, whatever bytes that were
    return scheme.lower() == "bearer" and hmac.compare_digest(given.encode("latin-1"), wanted)
