from datetime import date, datetime
from decimal import Decimal

import penstock
from penstock import Id, Index
from penstock import Table as Row


class Timed(Row):
    made_at: datetime


class Product(Row):
    name: str
    price: Decimal
    tags: list[str]

    by_name = Index("name", unique=True)
    by_price = penstock.Index("price")


class Order(Timed):
    product: Id[Product]
    customer: str
    day: date
    status: str = "open"

    by_customer = Index("customer")  # expect: PEN004
    by_customer_and_day = Index("customer", "day")
    by_day = Index("day", "customer")
    same_day = Index("day", "customer")  # expect: PEN004


class Tenant(penstock.Table):
    name: str
    owner: str
