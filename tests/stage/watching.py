"""Queries that a test watches, and a list that a client pages through, on live queries whose ticks the test makes.

`python -m stage.watching watch <url>` watches a query of `Theatre`, and says each answer.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from penstock import CursorInvalid, Index, Page, PaginationOptions, QueryCtx, Table
from penstock.app import Backend
from penstock.changes.demand import Demands
from penstock.clock import SystemClock
from penstock.functions.function import AnyFunction
from penstock.live.entry import Answer, Entry
from penstock.live.view import Step, View
from penstock.services.live.live import LiveQueries
from penstock.testing import TestApp
from stage.databases import sql
from stage.stories import Stage


def watched(live: LiveQueries, function: AnyFunction, **arguments: Any) -> Entry:
    view = live.view()
    view.add(0, function, arguments)
    return view.queries[0]


async def step(live: LiveQueries) -> None:
    """Make a tick, and let runs go on that take longer."""
    await live.tick()
    await SystemClock().sleep(0)


async def settle(live: LiveQueries) -> None:
    """Make a tick, and further ones until all queries have their answers: on a slow machine one may take too long."""
    await step(live)
    while any(one.stale for one in live.report()):
        await step(live)


async def burn(test: Backend, count: int) -> None:
    """Let demands end: write elsewhere so many times."""
    for number in range(count):
        if test.config.database.startswith("sqlite"):
            values = f"'[-{number + 1}]', 'message', '2030-01-01T00:00:00.000000Z'"
            await sql(test, f"insert into penstock_change (interests, kinds, changed_at) values ({values})")
        else:
            await sql(test, "select pg_current_xact_id()")


_WHOLE = PaginationOptions()  # of a query that has no pages


class Render(NamedTuple):
    """What the list shows. `end` is the cursor after its last row, or None while a page is missing."""

    rows: list[Any]
    end: str | None
    done: bool


class Subscription:
    def __init__(self, view: View, number: int, function: Any, arguments: dict[str, Any]) -> None:
        self.options: PaginationOptions = arguments.get("pagination_opts", _WHOLE)
        self.answer: Answer | None = None
        self.dirty = False
        self._number, self.asked = number, (function, arguments)
        self.watch(view)

    def watch(self, view: View) -> None:
        self._view = view
        view.add(self._number, *self.asked, None if self.answer is None else self.answer.journal)

    @property
    def runs(self) -> int:
        return self._view.queries[self._number].runs

    @property
    def page(self) -> Page[Any] | None:
        if self.answer is None:
            return None
        if self.answer.error is not None:
            raise self.answer.error
        found: Page[Any] = self.answer.result
        return found

    def take(self, step: Step) -> None:
        self.answer = step.answers.get(self._number, self.answer)

    def close(self) -> None:
        self._view.remove(self._number)


class PagedList:
    """A list on a screen.

    Args:
        live: The live queries that it subscribes to.
        function: A query that takes `pagination_opts`.
        arguments: Its other arguments.
        initial: Rows of the first page.
    """

    def __init__(self, live: LiveQueries, function: Any, arguments: dict[str, Any], initial: int) -> None:
        self._live, self._function, self._arguments, self._initial = live, function, arguments, initial
        self.view, self._numbers = live.view(), itertools.count()
        self.pages: list[Subscription] = []
        self.splitting: dict[Subscription, tuple[Subscription, Subscription]] = {}
        self.resets = self.splits = 0
        self._begin()

    def _begin(self) -> None:
        self.pages = [self._page(num_items=self._initial)]
        self.splitting = {}

    def _page(self, **options: Any) -> Subscription:
        arguments = {**self._arguments, "pagination_opts": PaginationOptions(**options)}
        return Subscription(self.view, next(self._numbers), self._function, arguments)

    @property
    def subscriptions(self) -> list[Subscription]:
        return [*self.pages, *(page for pair in self.splitting.values() for page in pair)]

    @property
    def fails(self) -> bool:
        return any(one.answer is not None and one.answer.error is not None for one in self.subscriptions)

    def render(self) -> Render:
        """Take the newest answers, which are all of one tick, and show them."""
        if (step := self.view.step()) is not None:
            for one in self.subscriptions:
                one.take(step)
        rows: list[Any] = []
        page = None
        for one in list(self.pages):
            try:
                page = one.page
                halves = [half.page for half in self.splitting.get(one, ())]
            except CursorInvalid:
                for failed in self.subscriptions:
                    failed.close()
                self._begin()
                self.resets += 1
                return Render([], None, done=False)
            if page is None:
                return Render(rows, None, done=False)
            if halves and None not in halves:
                place, pair = self.pages.index(one), self.splitting.pop(one)
                self.pages[place : place + 1] = pair
                self.splits += 1
                one.close()
            elif not halves and page.split_cursor and (page.page_status or len(page.page) > 2 * self._initial):
                asked, at = one.options, page.split_cursor
                self.splitting[one] = (
                    self._page(num_items=asked.num_items, cursor=asked.cursor, end_cursor=at),
                    self._page(num_items=asked.num_items, cursor=at, end_cursor=page.continue_cursor),
                )
            if page.page_status == "SplitRequired":
                return Render(rows, None, done=False)
            rows += page.page
        return Render(rows, page.continue_cursor if page else None, done=page is not None and page.is_done)

    def load_more(self, number: int) -> None:
        page = self.pages[-1].page
        if page is not None and not page.is_done and page.page_status != "SplitRequired":
            self.pages.append(self._page(num_items=number, cursor=page.continue_cursor))

    def reconnect(self) -> None:
        self.view.close()
        self.view = self._live.view()
        for one in self.subscriptions:
            one.watch(self.view)

    def close(self) -> None:
        self.view.close()


ROOM = 30


class Seat(Table):
    row: int = 0

    by_row = Index("row")


class Other(Table):
    note: str = ""


class Theatre(Stage):
    def __init__(self) -> None:
        super().__init__(Seat, Other)

        @self.app.query
        async def count(ctx: QueryCtx) -> int:
            return await ctx.db.query(Seat).count()

        self.count = count

    def watching(self, test: TestApp) -> tuple[LiveQueries, Entry]:
        live = LiveQueries(test.runner, self.app.definitions())
        return live, watched(live, self.count)

    @asynccontextmanager
    async def captured(self, url: str) -> AsyncIterator[tuple[TestApp, LiveQueries, Entry]]:
        async with self.open(url) as test:
            live, entry = self.watching(test)
            await settle(live)
            await settle(live)
            yield test, live, entry


def insert(name: str) -> str:
    return f"insert into seat (id, creation_time, row) values ('{name}', '2030-01-01T00:00:00.000000Z', 0)"


async def watch(url: str) -> None:
    Demands.room = ROOM
    stage = Theatre()
    async with stage.app.open(url) as backend:
        async for answer in backend.live(stage.count):
            print(answer, flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[2]))
