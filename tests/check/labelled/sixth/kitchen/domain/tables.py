from datetime import date, datetime
from decimal import Decimal
from typing import Literal

import penstock as p

State = Literal["open", "cooking", "served", "paid"]


class Table_(p.Table, name="place"):
    number: int
    seats: int
    waiter: str = ""

    by_number = p.Index("number", unique=True)
    by_waiter = p.Index("waiter")


class Ticket(p.Table):
    place: p.Id[Table_]
    state: State = "open"
    opened: datetime
    guest: str = ""
    total: Decimal = Decimal(0)

    by_place = p.Index("place")  # expect: PEN004
    by_place_state = p.Index("place", "state")
    by_state = p.Index("state", "opened")
    by_guest = p.Index("guest")


class Dish(p.Table):
    name: str
    cents: int
    sold_out: bool = False
    course: str = "main"

    by_name = p.Index("name", unique=True)
    by_course = p.Index("course")


class Item(p.Table):
    ticket: p.Id[Ticket]
    dish: p.Id[Dish]
    count: int = 1
    cook: str | None = None

    by_ticket = p.Index("ticket", "dish")  # expect: PEN004
    by_ticket_dish_cook = p.Index("ticket", "dish", "cook")
    by_cook = p.Index("cook")


class Cook(p.Table):
    name: str
    user: str
    pin: str
    chef: bool = False

    by_user = p.Index("user")
    by_name = p.Index("name")


class Shift(p.Table):
    cook: p.Id[Cook]
    day: date
    hours: int = 8

    by_cook = p.Index("cook", "day", unique=True)
    by_day = p.Index("day")


class Supplier(p.Table):
    name: str
    url: str
    last: datetime | None = None
