"""Rename booking.customer to client."""

from alembic import op
from sqlalchemy import Column

from penstock.migrations import Backfill, Stored, relax, sync, unsync


def expand() -> None:
    op.add_column("booking", Column("client", Stored("text")))
    relax("booking", "customer")
    sync("booking", "customer", up={"client": '"customer"'}, down={"customer": '"client"'})


backfills = [Backfill(table="booking", values={"client": '"customer"'}, where='"client" is null')]


def contract() -> None:
    unsync("booking", "customer")
    op.drop_column("booking", "customer")


def down() -> None:
    unsync("booking", "customer")
    op.drop_column("booking", "client")
