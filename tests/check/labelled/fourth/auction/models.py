"""Tables of the auction house."""

from __future__ import annotations

import enum
from datetime import datetime

from penstock import Id, Index, Rules, Table


class LotState(enum.Enum):
    DRAFT = "draft"
    OPEN = "open"
    SOLD = "sold"


class Timestamped(Table, abstract=True):
    changed_at: datetime | None = None


class Bidder(Timestamped):
    token: str
    email: str
    credit: int = 0
    is_admin: bool = False

    by_token = Index("token", unique=True)
    by_email = Index("email")


class Sale(Timestamped):
    title: str
    owner: str
    starts_at: datetime

    by_owner = Index("owner")
    by_starts_at = Index("starts_at")


class Lot(Timestamped):
    sale: Id[Sale]
    number: int
    title: str
    estimate: int
    state: LotState = LotState.DRAFT
    winner: Id[Bidder] | None = None

    by_sale = Index("sale")  # expect: PEN004
    by_sale_and_number = Index("sale", "number")
    by_state = Index("state")
    by_winner = Index("winner")


class Bid(Timestamped):
    lot: Id[Lot]
    bidder: Id[Bidder]
    amount: int

    by_lot_and_amount = Index("lot", "amount")
    by_bidder = Index("bidder")  # read newest first
    by_bidder_and_lot = Index("bidder", "lot")


class Invoice(Timestamped):
    bidder: Id[Bidder]
    lot: Id[Lot]
    cents: int
    paid: bool = False

    by_bidder_and_paid = Index("bidder", "paid")  # expect: PEN004
    by_bidder_paid_cents = Index("bidder", "paid", "cents")
    by_lot = Index("lot", unique=True)
    by_paid = Index("paid")
    rules = Rules(read=lambda row, identity: row.bidder == identity.subject)
