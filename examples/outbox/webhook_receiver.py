"""The other end of signed_webhook.py: takes events only if they are signed, not old, and keeps each once.

Copy `verify`, which any receiver of Standard Webhooks needs. A receiver that has a database writes the id of an event
in the transaction that handles the event, where this one has a dict.
"""

import base64
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

TOLERANCE = 300  # seconds by which the clocks may differ


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> str | None:
    """The id of an event that was signed with the secret lately; None if it was not."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    message, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not key or not message or not timestamp.isdecimal() or abs(now - float(timestamp)) > TOLERANCE:
        return None
    digest = hmac.digest(key, f"{message}.{timestamp}.".encode() + body, "sha256")
    expected = b"v1," + base64.b64encode(digest)
    given = headers.get("webhook-signature", "").encode().split()  # several, while a secret is replaced
    matches = [hmac.compare_digest(expected, one) for one in given]
    return message if any(matches) else None


class Receiver:
    """Keeps each event once. Now and then it fails after that, and at one call it asks to be left alone for a while."""

    def __init__(self, secret: str, *, fails_every: int = 0, pauses_at: int = 0) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.calls = self.again = self.fence = 0
        self._secret = secret
        self._fails_every, self._pauses_at = fails_every, pauses_at

    async def receive(self, request: Request) -> Response:
        """Answer one call."""
        self.calls += 1
        if self.calls == self._pauses_at:
            return Response(status_code=429, headers={"retry-after": "1"})
        body = await request.body()
        if (message := verify(self._secret, request.headers, body, time.time())) is None:
            return Response(status_code=401)
        event = json.loads(body)
        if (fence := int(event.get("fence", self.fence))) < self.fence:  # of a process that was overtaken
            return Response(status_code=409)
        self.fence = fence
        if message in self.events:
            self.again += 1
        else:
            self.keep(message, event)
        fails = self._fails_every and self.calls % self._fails_every == 0
        return Response(status_code=500 if fails else 204)

    def keep(self, message: str, event: dict[str, Any]) -> None:
        """Keep an event that is new."""
        self.events[message] = event
