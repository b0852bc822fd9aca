"""A program on the generated client of every kind, in which type checkers tell a status by its `kind`."""

from __future__ import annotations

from datetime import date

from api import Api, OrderId  # type: ignore[import-not-found]  # generated

from penstock.client import Client


def shown(client: Client) -> str:
    status = Api(client).programs_everykind.state(work="job_01jd3k4v5w6x7y8z9a0b1c2d3e")
    if status is None or status["kind"] == "pending":
        return "waits" if status is None else f"waits after {status['previousAttempts'] + 1}"
    if status["kind"] == "running":
        progress = status["progress"]
        return f"{status['previousAttempts'] + 1}: {None if progress is None else progress['done'] / 2}"
    ended: str = status["result"]["error"] if status["result"]["kind"] == "failed" else status["kind"]
    return ended.strip()


def shipped(client: Client) -> str:
    api = Api(client)
    run: str = api.programs_everykind_ship.start(order=OrderId("order_01jd3k4v5w6x7y8z9a0b1c2d3e"), size="small")
    told: bool = api.events.shipped(run=run, payload=date(2030, 1, 2), key="once")
    status = api.programs_everykind_ship.status(run=run)
    if told and status is not None and status["state"] == "success" and status["result"] is not None:
        return ", ".join(f"{day}: {cost + 1}" for day, cost in status["result"].items())
    return "underway"
