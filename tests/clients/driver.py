"""Runs the official Python client, told what to do by lines of JSON on its standard input; ``driver.py URL``."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from convex import ConvexClient, ConvexError, QuerySubscription, convex_to_json, json_to_convex

subscriptions: dict[str, QuerySubscription] = {}
answers: dict[Any, Any] = {}  # the newest of each subscription, by its id


def tell(**message: Any) -> None:
    """Say a line."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def told(error: Exception) -> dict[str, Any]:
    """What an error says to the test."""
    data = {"data": convex_to_json(error.data)} if isinstance(error, ConvexError) else {}
    return {"error": {"message": str(error), **data}}


async def follow(client: ConvexClient) -> None:
    """Tell of each state of all subscriptions together."""
    async for found in client.watch_all():
        if found is None:
            return
        answers.clear()
        answers.update(found)
        show()


def show() -> None:
    """Tell the state of all subscriptions together, once each has an answer."""
    if subscriptions and all(one.id in answers for one in subscriptions.values()):
        tell(seen={name: shown(answers[one.id]) for name, one in subscriptions.items()})


def shown(found: Any) -> dict[str, Any]:
    """A value or an error, as the other driver shows it."""
    if isinstance(found, tuple):  # of an error with data: no value is one
        return told(ConvexError(*found))
    return {"value": convex_to_json(found)}


def act(client: ConvexClient, order: dict[str, Any]) -> dict[str, Any]:
    """Do what a line asks for."""
    verb, name = order["do"], order.get("name", "")
    args: Any = json_to_convex(order.get("args") or {})
    if verb == "subscribe":
        subscriptions[name] = client.subscribe(order["path"], args)
        return {}
    if verb == "sign":
        tokens = order["args"]["tokens"]
        client.set_auth(tokens[0]) if tokens else client.clear_auth()
        return {"value": None}
    if verb == "unsubscribe":
        subscriptions.pop(name).unsubscribe()
        return {}
    try:
        return {"value": convex_to_json(getattr(client, verb)(order["path"], args))}
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return told(error)


async def main(url: str) -> None:
    """Obey until the input ends."""
    client = ConvexClient(url)
    following = asyncio.ensure_future(follow(client))  # before the first subscription, whose answer it would miss
    tell(ready=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line, parse_int=float)  # which is what JSON has
        tell(id=order["id"], **await asyncio.to_thread(act, client, order))
        if order["do"] == "subscribe":
            show()  # its answer may have come before it had its name
    following.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
