"""What the box office remembers."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from penstock import Id, Index, JobId, Table


class SeatState(StrEnum):
    FREE = "free"
    HELD = "held"
    SOLD = "sold"


class Venue(Table):
    name: str
    town: str
    capacity: int = 0

    by_town = Index("town")  # expect: PEN004
    by_town_and_name = Index("town", "name")


class Event(Table):
    venue: Id[Venue]
    title: str
    starts_at: datetime
    state: str = "planned"

    by_venue = Index("venue", "starts_at")
    by_start = Index("starts_at")
    by_state = Index("state")  # the newest of a state are shown first
    by_state_start = Index("state", "starts_at")


class Seat(Table):
    event: Id[Event]
    row: str
    number: int
    state: SeatState = SeatState.FREE
    holder: str | None = None
    held_until: datetime | None = None

    by_event = Index("event", "state")
    by_place = Index("event", "row", "number", unique=True)
    by_holder = Index("holder")
    by_held_until = Index("held_until")


class Order(Table):
    buyer: str
    email: str
    event: Id[Event]
    cents: int
    state: str = "open"
    job: JobId | None = None

    by_buyer = Index("buyer", "state")
    by_buyer_again = Index("buyer", "state")  # expect: PEN004
    by_event = Index("event", "state")
    by_email = Index("email")


class Refund(Table):
    order: Id[Order]
    cents: int
    reason: str

    by_order = Index("order", unique=True)
    by_order_and_cents = Index("order", "cents")


class Staff(Table):
    user: str
    email: str
    role: str = "usher"

    by_user = Index("user", unique=True)
    by_email = Index("email")


class Audit(Table):
    who: str
    what: str
    details: dict[str, Any] = {}

    by_who = Index("who")
