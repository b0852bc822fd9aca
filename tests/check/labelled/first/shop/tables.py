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


class Review(Row):
    product: Id[Product]
    author: str
    stars: int

    by_product = Index("product")
    by_product_and_author = Index("product", "author")


class Setting(Row):
    key: str
    value: str

    by_key = Index("key", unique=True)
    by_key_and_value = Index("key", "value")


class Tenant(penstock.Table):
    name: str
    owner: str
