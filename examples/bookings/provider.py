"""An SMS provider as they are: slow, often overloaded, now and then out of order. It sends nothing.

A message comes with an idempotency key, and is accepted once per key; its receipt is the same however often it comes.
Some requests it refuses, and of some that it accepts the answer gets lost.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

OK = 200
OVERLOADED, BROKEN, ANSWER_LOST, SLOW = 0.04, 0.04, 0.03, 0.06
OUT_OF_SERVICE = "0000"  # how phone numbers end that nobody can be reached at


@dataclass
class Provider:
    """What the provider remembers: messages by idempotency key, and how many requests ended in which way."""

    chance: random.Random
    accepted: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    under_way: int = 0
    out_until: float = 0.0

    async def take_sms(self, request: Request) -> Response:
        """``POST /sms``: take a message, after a while, perhaps."""
        key, sms = request.headers.get("idempotency-key", ""), await request.json()
        slow = self.chance.random() < SLOW
        self.under_way += 1
        try:
            await asyncio.sleep(self.chance.uniform(0.8, 1.2) if slow else self.chance.uniform(0.02, 0.08))
        finally:
            self.under_way -= 1
        outcome, status = self._judge(key, sms)
        if outcome in {"accepted", "answer lost"}:
            known = key in self.accepted
            self.accepted.setdefault(key, {**sms, "receipt": f"R{len(self.accepted) + 1:05}"})
            outcome = "repeated" if known and status == OK else outcome
        self.answers[outcome] += 1
        return JSONResponse({"receipt": self.accepted[key]["receipt"]} if status == OK else {"error": outcome}, status)

    def _judge(self, key: str, sms: dict[str, str]) -> tuple[str, int]:
        luck = self.chance.random()
        if time.monotonic() < self.out_until:
            return "out of order", 503
        if luck < OVERLOADED:
            return "overloaded", 429
        if luck < OVERLOADED + BROKEN:
            return "broken", 500
        if not key or sms.get("phone", OUT_OF_SERVICE).endswith(OUT_OF_SERVICE):
            return "out of service", 422
        return ("answer lost", 504) if luck < OVERLOADED + BROKEN + ANSWER_LOST else ("accepted", OK)

    async def start_outage(self, request: Request) -> Response:
        """``POST /outage?seconds=4``: be out of order."""
        self.out_until = time.monotonic() + float(request.query_params["seconds"])
        return Response(status_code=204)

    async def show_stats(self, _request: Request) -> Response:
        """``GET /stats``: how it goes."""
        outage = time.monotonic() < self.out_until
        stats = {"accepted": len(self.accepted), "under_way": self.under_way, "outage": outage}
        return JSONResponse({**stats, "answers": dict(self.answers)})

    async def list_accepted(self, _request: Request) -> Response:
        """``GET /accepted``: what was accepted, by idempotency key."""
        return JSONResponse(self.accepted)


def make_app(seed: int | None = None) -> Starlette:
    provider = Provider(random.Random(seed))
    return Starlette(
        routes=[
            Route("/sms", provider.take_sms, methods=["POST"]),
            Route("/outage", provider.start_outage, methods=["POST"]),
            Route("/stats", provider.show_stats),
            Route("/accepted", provider.list_accepted),
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8025)
    parser.add_argument("--seed", type=int, help="for the same luck each time")
    arguments = parser.parse_args()
    uvicorn.run(make_app(arguments.seed), host="127.0.0.1", port=arguments.port, log_level="warning")
