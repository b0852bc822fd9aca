"""Messages to topics, sent from any transaction: with a ctx, a backend, or a connection of the user's own."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, overload

from penstock.api.guests import Guests
from penstock.calls.enqueue.jobs import calls_of
from penstock.calls.enqueue.messages import send_message

if TYPE_CHECKING:
    from penstock.api.callers import AsyncWriter, SyncWriter


class Sending:
    """Sends messages from wherever there is a transaction, or none: what `App.outboxes` does beside declaring.

    Args:
        guests: The app's work in transactions of the user's own.
    """

    def __init__(self, guests: Guests) -> None:
        self._guests = guests

    @overload
    def send(
        self, ctx: AsyncWriter, topic: str, payload: Any, *, key: str | None = None
    ) -> Coroutine[Any, Any, None]: ...
    @overload
    def send(self, ctx: SyncWriter, topic: str, payload: Any, *, key: str | None = None) -> None: ...
    def send(self, ctx: Any, topic: str, payload: Any, *, key: str | None = None) -> Any:
        """Send a message to a topic; see `Sender.send`, which ``ctx.outbox`` is, for what else it may raise.

        In a transaction of your own, if its connection is passed: one of psycopg, psycopg2, asyncpg, SQLAlchemy,
        Django, sqlite3 or aiosqlite. It is sent if and only if that commits. On a sync connection there is nothing to
        await.

        Args:
            ctx: The connection; or the ctx of a mutation or an action, or the backend of a program.
            topic: For which an outbox is declared.
            payload: What its handler takes.
            key: By which messages are in order.

        Raises:
            ContextError: The connection is closed, its transaction has failed, or it leads to another kind of database
                than the app's; or the ctx is one of a query.
            ConfigError: The database of the connection has no tables of penstock.
        """
        calls = calls_of(ctx, writes=True, otherwise=self._guests.calls)
        return calls.answer(send_message(calls, topic, payload, key))
