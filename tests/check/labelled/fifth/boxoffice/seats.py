"""Seats as functions read and write them: a repository that is made for each call."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from penstock import Id, MutationCtx, QueryCtx

from .schema import Event, Seat, SeatState

HOLD = timedelta(minutes=15)
RNG = random.Random(7)


@dataclass
class Seats:
    ctx: QueryCtx
    event: Id[Event]

    async def free(self) -> list[Seat]:
        return await self.ctx.db.query(Seat).with_index(Seat.by_event, event=self.event, state=SeatState.FREE).take(500)

    async def of_row(self, row: str) -> list[Seat]:
        seats = self.ctx.db.query(Seat)
        return await seats.filter(lambda seat: seat.event == self.event and seat.row == row).take(60)  # expect: PEN002

    async def sold(self) -> list[Seat]:
        of_event = self.ctx.db.query(Seat).with_index(Seat.by_event, event=self.event)
        return await of_event.filter(lambda seat: seat.state == SeatState.SOLD).collect()  # expect: PEN002

    async def at(self, row: str, number: int) -> Seat | None:
        place = self.ctx.db.query(Seat).with_index(Seat.by_place, event=self.event, row=row, number=number)
        return await place.unique()

    async def aisle(self) -> list[Seat]:
        rows = self.ctx.db.query(Seat).with_index(Seat.by_place, event=self.event)
        return [seat async for seat in rows if seat.number % 10 == 0]

    async def misplaced(self) -> list[Seat]:
        return await self.ctx.db.query(Seat).with_index(Seat.by_place, event=self.event, seat=3).take(5)  # expect: PEN021


class WritableSeats(Seats):
    ctx: MutationCtx

    async def hold(self, seat: Id[Seat], holder: str) -> None:
        await self.ctx.db.patch(Seat, seat, holder=holder, state=SeatState.HELD, held_until=self.ctx.now() + HOLD)

    async def hold_by_wall_clock(self, seat: Id[Seat], holder: str) -> None:
        until = datetime.now(timezone.utc) + HOLD  # expect: PEN014
        await self.ctx.db.patch(Seat, seat, holder=holder, state=SeatState.HELD, held_until=until)

    async def release(self, seat: Id[Seat]) -> None:
        self.ctx.db.patch(Seat, seat, holder=None, state=SeatState.FREE)  # expect: PEN001

    async def best(self, wanted: int) -> Sequence[Seat]:
        seats = await self.free()
        random.shuffle(seats)  # expect: PEN014
        return seats[:wanted]

    async def fair(self, wanted: int) -> Sequence[Seat]:
        seats = await self.free()
        self.ctx.random.shuffle(seats)
        return seats[:wanted]

    async def drop(self, seat: Id[Seat]) -> None:
        await self.ctx.db.delete(seat)  # expect: PEN013


def lucky_number() -> int:
    return RNG.randint(1, 90)  # expect: PEN014
