"""What every repository keeps: the ctx of the call."""

from __future__ import annotations

from penstock import Id, MutationCtx, QueryCtx

from auction.models import Bid, Lot


class Reader:
    def __init__(self, ctx: QueryCtx) -> None:
        self.ctx = ctx
        self.db = ctx.db


class Writer:
    def __init__(self, ctx: MutationCtx) -> None:
        self.ctx = ctx


class LotReader(Reader):
    async def one(self, lot: Id[Lot]) -> Lot | None:
        return await self.ctx.db.get(Lot, lot)

    async def one_by_id(self, lot: Id[Lot]) -> Lot | None:
        return await self.db.get(lot)  # expect: PEN013

    async def of_sale(self, sale: str) -> list[Lot]:
        return await self.db.query(Lot).with_index(Lot.by_sale, sale=sale).collect()

    async def catalogue(self, sale: str) -> list[Lot]:
        return await self.db.query(Lot).with_index(Lot.by_sale_and_number, sale=sale).take(500)

    async def everything(self) -> list[Lot]:
        return await self.db.query(Lot).order("desc").collect()  # expect: PEN003

    async def open(self) -> list[Lot]:
        return await self.db.query(Lot).filter(lambda lot: lot.state == "open").take(50)  # expect: PEN002

    async def cheap(self, most: int) -> list[Lot]:
        query = self.db.query(Lot).with_index(Lot.by_state, state="open")
        return [lot for lot in await query.take(100) if lot.estimate <= most]

    async def titled(self, word: str) -> Lot | None:
        return await self.db.query(Lot).filter(lambda lot: word in lot.title.lower()).first()

    async def bargains(self) -> list[Lot]:
        return await self.db.query(Lot).filter(lambda lot: lot.estimate < lot.number).take(3)

    async def numbered(self, number: int) -> Lot | None:
        async for lot in self.db.query(Lot):  # expect: PEN002
            if lot.number == number:
                return lot
        return None

    async def won_by(self, bidder: str) -> list[Lot]:
        return await self.db.query(Lot).with_index(Lot.by_winner, bidder=bidder).take(10)  # expect: PEN021


class LotWriter(Writer):
    async def rename(self, lot: Id[Lot], title: str) -> None:
        await self.ctx.db.patch(Lot, lot, title=title, changed_at=self.ctx.now())

    async def rename_quickly(self, lot: Id[Lot], title: str) -> None:
        self.ctx.db.patch(Lot, lot, title=title)  # expect: PEN001

    async def reprice(self, lot: Id[Lot], estimate: int) -> None:
        await self.ctx.db.patch(lot, estimate=estimate)  # expect: PEN013

    async def number(self, lot: Id[Lot], no: int) -> None:
        await self.ctx.db.patch(Lot, lot, no=no)  # expect: PEN021

    async def change(self, lot: Id[Lot], **columns: str) -> None:
        await self.ctx.db.patch(Lot, lot, **columns)

    async def remove(self, lot: Id[Lot]) -> None:
        await self.ctx.db.delete(Lot, lot)

    def removing(self, lot: Id[Lot]):
        return self.ctx.db.delete(Lot, lot)


class BidReader(Reader):
    async def highest(self, lot: Id[Lot]) -> Bid | None:
        return await self.db.query(Bid).with_index(Bid.by_lot_and_amount, lot=lot).order("desc").first()

    async def above(self, lot: Id[Lot], amount: int) -> list[Bid]:
        rows = await self.db.query(Bid).with_index(Bid.by_lot_and_amount, lot=lot).collect()
        return [bid for bid in rows if bid.amount > amount]  # expect: PEN002

    async def of(self, bidder: str) -> list[Bid]:
        return await self.db.query(Bid).with_index(Bid.by_bidder, bidder=bidder).order("desc").take(20)

    async def of_bidder(self, bidder: str) -> list[Bid]:
        return [bid for bid in await self.db.query(Bid).collect() if bid.bidder == bidder]  # expect: PEN003, PEN002

    def newest(self):
        return self.db.query(Bid).order("desc")

    async def last(self) -> Bid | None:
        return await self.newest().first()
