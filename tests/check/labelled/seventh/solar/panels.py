"""Solar panels on roofs: tables, and classes that keep a ctx."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from penstock import App, Id, Index, MutationCtx, QueryCtx, Table, gte

app = App(require_access=False)
T = TypeVar("T", bound=Table)


class Roof(Table):
    owner: str
    street: str
    town: str
    peak: int = 0

    by_owner = Index("owner")
    by_town = Index("town", "street")
    by_town_and_peak = Index("town", "peak")


class Panel(Table):
    roof: Id[Roof]
    serial: str
    watts: int
    broken: bool = False

    by_roof = Index("roof", "broken")
    by_serial = Index("serial", unique=True)
    by_serial_and_watts = Index("serial", "watts")


class Reading(Table):
    panel: Id[Panel]
    at: datetime
    watts: int

    by_panel = Index("panel", "at")
    by_panel_again = Index("panel", "at")  # expect: PEN004


@dataclass
class Yield:
    watts: int = 0
    parts: list[int] = field(default_factory=list)

    def add(self, watts: int) -> None:
        self.parts.append(watts)
        self.watts += watts


class Repository(Generic[T]):
    table: type[T]

    def __init__(self, ctx: QueryCtx) -> None:
        self.ctx = ctx
        self.db = ctx.db

    async def one(self, id: Id[T]) -> T:
        row = await self.db.get(self.table, id)
        if row is None:
            raise LookupError(id)
        return row

    async def every(self) -> list[T]:
        return await self.db.query(self.table).collect()  # expect: PEN003


class Roofs(Repository[Roof]):
    table = Roof

    async def of(self, owner: str) -> list[Roof]:
        return await self.db.query(Roof).with_index(Roof.by_owner, owner=owner).collect()

    async def in_town(self, town: str) -> list[Roof]:
        found = self.db.query(Roof)
        found = found.filter(lambda roof: roof.town == town)  # expect: PEN002
        return await found.take(10)

    async def big(self, town: str, least: int) -> list[Roof]:
        return await self.db.query(Roof).with_index(Roof.by_town_and_peak, town=town, peak=gte(least)).take(10)

    async def towns(self) -> set[str]:
        rows = self.ctx.db.query(Roof)
        return {row.town for row in await rows.collect()}  # expect: PEN003


class Panels(Repository[Panel]):
    table = Panel

    async def broken(self) -> list[Panel]:
        result = []
        async for panel in self.db.query(Panel):  # expect: PEN002
            if panel.broken:
                result.append(panel)
        return result

    async def working(self, roof: Id[Roof]) -> Yield:
        total = Yield()
        async for panel in self.db.query(Panel).with_index(Panel.by_roof, roof=roof, broken=False):
            total.add(panel.watts)
        return total

    async def first(self, serial: str) -> Panel | None:
        return await self.db.query(Panel).with_index(Panel.by_serial, number=serial).first()  # expect: PEN021

    async def strong(self) -> int:
        return await self.db.query(Panel).filter(lambda panel: panel.watts > 400).count()  # expect: PEN002


class Service:
    """What mutations share."""

    def __init__(self, ctx: MutationCtx) -> None:
        self._ctx = ctx
        self._roofs = Roofs(ctx)
        self._panels = Panels(ctx)

    @property
    def now(self) -> datetime:
        return self._ctx.now()

    @contextmanager
    def counted(self) -> Iterator[Yield]:
        total = Yield()
        yield total

    async def add(self, roof: Id[Roof], serial: str, watts: int) -> Id[Panel]:
        await self._roofs.one(roof)
        return await self._ctx.db.insert(Panel(roof=roof, serial=serial, watts=watts))

    async def swap(self, old: Id[Panel], serial: str) -> None:
        panel = await self._panels.one(old)
        self._ctx.db.delete(Panel, old)  # expect: PEN001
        await self.add(panel.roof, serial, panel.watts)

    async def measure(self, panel: Id[Panel], watts: int) -> None:
        await self._ctx.db.insert(Reading(panel=panel, at=datetime.now(), watts=watts))  # expect: PEN014

    async def sum_up(self, roof: Id[Roof]) -> int:
        with self.counted() as total:
            more = await self._panels.working(roof)
            total.add(more.watts)
        await self._ctx.db.patch(Roof, roof, peak=total.watts)
        return total.watts

    async def drop_old(self) -> int:
        before = self.now - timedelta(days=400)
        old = await self._ctx.db.query(Reading).take(2000)
        gone = [one.id for one in old if one.at < before]  # expect: PEN002
        for one in gone:
            await self._ctx.db.delete(one)  # expect: PEN013
        return len(gone)
