"""Follows a channel with the Python client, or sends to it: ``python follow.py [channel] [name] [text]``.

With a text it sends that and ends. Without one it follows.
"""

import os
import sys
from typing import Any

from convex import ConvexClient


def follow(client: ConvexClient, channel: str) -> None:
    shown = set()
    messages: Any
    for messages in client.subscribe("chat:latest", {"channel": channel}):
        for message in messages:
            if message["_id"] not in shown:
                print(f"{message['author']}: {message['text']}", flush=True)
            shown.add(message["_id"])


def main(channel: str = "general", author: str = "python", *words: str) -> None:
    client = ConvexClient(os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8000"))
    if words:
        client.mutation("chat:send", {"channel": channel, "author": author, "text": " ".join(words)})
    else:
        follow(client, channel)


if __name__ == "__main__":
    main(*sys.argv[1:])
