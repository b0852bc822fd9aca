"""The tables."""

from __future__ import annotations

import enum
from datetime import date, datetime

from penstock import Id, Index, Table


class State(enum.StrEnum):
    ON_SHELF = "on shelf"
    LENT = "lent"
    LOST = "lost"


class Reader(Table):
    card: str
    email: str
    blocked: bool = False

    by_card = Index("card", unique=True)
    by_email = Index("email", unique=True)


class Title(Table):
    isbn: str
    name: str
    author: str
    year: int = 0

    by_isbn = Index("isbn")
    by_author = Index("author")  # expect: PEN004
    by_author_and_name = Index("author", "name")
    by_year = Index("year", "author")


class Item(Table):
    title: Id[Title]
    branch: str
    state: State = State.ON_SHELF

    by_title = Index("title", "state")
    by_branch = Index("branch")
    by_branch_and_state = Index("branch", "state")


class Loan(Table):
    item: Id[Item]
    reader: Id[Reader]
    due: date
    returned_at: datetime | None = None

    by_reader = Index("reader", "due")
    by_item = Index("item", "returned_at")
    by_due = Index("due")
    by_item_only = Index("item")  # expect: PEN004


class Fine(Table):
    reader: Id[Reader]
    cents: int
    paid: bool = False

    by_reader = Index("reader", unique=True)
    by_reader_and_paid = Index("reader", "paid")
