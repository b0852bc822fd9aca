"""Opens the backend of a tenant by its key, and keeps those that were used last. Copy it into your program."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from penstock import App, Backend
from penstock.errors import DatabaseUnavailable
from penstock.services.service import ServiceName


@dataclass
class _Open:
    backend: asyncio.Task[Backend]
    stack: AsyncExitStack
    users: int = 0


class Tenants:
    """The backends of one app, each on the database of a tenant.

    Args:
        app: The declarations, which all tenants share.
        url_of: The database URL of a tenant; raises for keys that are none, so that callers open no new databases.
        most: How many idle backends stay open.
        settings: Settings of each backend, such as ``max_connections``.
    """

    def __init__(self, app: App, url_of: Callable[[str], str], *, most: int = 50, **settings: Any) -> None:
        self._app, self._url_of, self._most, self._settings = app, url_of, most, settings
        self._open: OrderedDict[str, _Open] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        for one in self._open.values():
            await one.stack.aclose()
        self._open.clear()

    @asynccontextmanager
    async def backend(self, tenant: str) -> AsyncIterator[Backend]:
        """The backend of a tenant, which stays open for the time of the block."""
        one = self._open.get(tenant)
        if one is None:
            stack = AsyncExitStack()
            opening = self._app.open(self._url_of(tenant), **self._settings)
            one = self._open[tenant] = _Open(asyncio.create_task(stack.enter_async_context(opening)), stack)
        self._open.move_to_end(tenant)
        one.users += 1
        try:
            yield await asyncio.shield(one.backend)  # callers that come meanwhile wait for the same one
        finally:
            one.users -= 1
            if one.backend.done() and one.backend.exception() is not None and self._open.get(tenant) is one:
                del self._open[tenant]  # the next caller tries again
            await self._close_idle()

    async def _close_idle(self) -> None:
        idle = [tenant for tenant, one in self._open.items() if not one.users and one.backend.done()]
        for one in [self._open.pop(tenant) for tenant in idle[: max(0, len(self._open) - self._most)]]:
            await one.stack.aclose()


async def work(app: App, urls: Iterable[str], services: tuple[ServiceName, ...], stop: asyncio.Event) -> None:
    """Run the services of many tenants in one process until `stop` is set. A database that is away delays no other."""
    async with asyncio.TaskGroup() as group:
        for url in urls:
            group.create_task(_work_for_one(app, url, services, stop))


async def _work_for_one(app: App, url: str, services: tuple[ServiceName, ...], stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            async with app.open(url, services=services):
                await stop.wait()
        except DatabaseUnavailable as error:
            print(f"A tenant has to wait: {error}")
            await asyncio.sleep(5)
