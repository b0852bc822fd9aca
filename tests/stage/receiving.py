"""The receiver of webhooks of the examples as a process, `python -m stage.receiving`; what it got is in a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route
from webhook_receiver import Receiver

SECRET = "whsec_c3RhZ2Ugc3RhZ2Ugc3RhZ2Ugc3RhZ2U="


def main(port: str, folder: str) -> None:
    """Receive until the process is killed."""
    file = Path(folder) / "events"
    file.touch()

    class Kept(Receiver):
        def keep(self, message: str, event: dict[str, Any]) -> None:
            super().keep(message, event)
            with file.open("a") as events:
                events.write(f"{message} {json.dumps(event)}\n")

    receiver = Kept(SECRET)
    for line in file.read_text().splitlines():
        message, _, event = line.partition(" ")
        receiver.events[message] = json.loads(event)
    site = Starlette(routes=[Route("/", receiver.receive, methods=["POST"])])
    uvicorn.run(site, host="127.0.0.1", port=int(port), log_level="warning", lifespan="off")


if __name__ == "__main__":
    main(*sys.argv[1:])
