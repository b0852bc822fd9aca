"""The tables of the library."""

from datetime import date, datetime
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel

import penstock as ps
from penstock import Id, Index, Rules, Table


class Address(BaseModel):
    street: str
    town: str


class Branch(Table):
    name: str
    town: str
    manager: str
    by_name = Index("name", unique=True)
    by_town = Index("town")


class Book(Table):
    isbn: str
    title: str
    author: str
    year: int
    shelf: str = ""

    by_isbn = Index("isbn")  # expect: PEN004
    by_isbn_and_year = Index("isbn", "year")
    by_author = Index("author", "year")
    by_year_and_author = Index("year", "author")
    by_shelf = Index("shelf")


class Copy(Table):
    book: Id[Book]
    branch: Id[Branch]
    barcode: str
    state: Literal["in", "out", "lost"] = "in"

    by_barcode = Index("barcode", unique=True)
    by_barcode_and_state = Index("barcode", "state")
    by_book = ps.Index("book")  # expect: PEN004
    by_book_and_branch = ps.Index("book", "branch")  # expect: PEN004
    by_book_branch_state = ps.Index("book", "branch", "state")
    by_branch = Index("branch", "state")


class Patron(Table):
    user: str
    email: str
    name: str
    address: Address
    banned: bool = False

    by_user = Index("user", unique=True)
    by_email = Index("email")
    by_name = Index("name")
    by_name_and_email = Index("name", "email")
    rules = Rules(read=lambda row, identity: row.user == identity.token_identifier)


class Loan(Table):
    copy_id: Id[Copy]
    patron: Id[Patron]
    due: date
    returned_at: datetime | None = None

    by_patron = Index("patron")
    by_patron_and_due = Index("patron", "due")
    by_due = Index("due")
    by_copy = Index("copy_id", "returned_at")


class Fine(Table):
    patron: Id[Patron]
    amount: Decimal
    paid: bool = False

    by_patron = Index("patron")  # expect: PEN004
    by_patron_and_paid = Index("patron", "paid")


class Weekday(Table):
    number: int
    opens: str


class Review(Table):
    book: Id[Book]
    patron: Id[Patron]
    stars: int
    text: str

    by_book = Index("book", "stars")
    by_patron_and_book = Index("patron", "book", unique=True)
    by_patron = Index("patron")  # expect: PEN004
