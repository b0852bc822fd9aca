"""Holds the capture of tables inside the migrations of other programs: Alembic's, Django's, or plain SQL.

Owns the words for a connection of the user's. Leaves triggers to the store: see `Interests.hold`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from logging import ERROR
from typing import Any

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import PenstockError
from penstock.observe.logs import event as log_event
from penstock.store.guest.session import GuestSession, finish, guest_session
from penstock.store.nouns.interests import Interests
from penstock.store.open import make_store

# Nobody connects there: such a store only provides statements.
NOWHERE = {"postgres": "postgresql://", "sqlite": "sqlite:///nowhere.db"}


def hold(connection: Any, table: str) -> list[str]:
    """Take away the triggers of a table in the transaction that is open on a connection, until `release`.

    Columns can be dropped and retyped then. If the transaction also releases the table, no change is missed.

    Args:
        connection: A sync connection of psycopg, psycopg2, SQLAlchemy, Django or sqlite3.
        table: The SQL name of the table, as the program that watches it declares it.

    Returns:
        The names of the interests that are held; none if nobody watches the table, or penstock has no tables yet.
    """
    return _within(connection, lambda interests, session: interests.hold(table, session))


def release(connection: Any, table: str) -> list[str]:
    """Capture the changes of a held table again.

    Returns:
        The names of the interests that the table does not fit any more, as a column of theirs is gone or has another
        type. Each is logged as ``changes.interest_broken``, and told that a change was lost. It captures again once it
        fits, or once a program declares it in a form that fits.
    """
    misfits = _within(connection, lambda interests, session: interests.release(table, session))
    for name in misfits:
        fix = "Declare it in a form that fits the table."
        log_event("changes.interest_broken", ERROR, interest=name, table=table, state="altered", mended=False, fix=fix)
    return misfits


@contextmanager
def held(connection: Any, *tables: str) -> Iterator[None]:
    """Hold tables for the block of a ``with`` statement, and release them at its end, also after an error.

    In an Alembic migration the connection is ``op.get_bind()``. Interests that a table does not fit any more are logged
    by name. Where penstock has no tables yet, nothing is held.
    """
    try:
        for table in tables:
            hold(connection, table)
        yield
    except BaseException:
        with suppress(PenstockError):  # a failed transaction has nothing to release: its end undoes the hold
            for table in tables:
                release(connection, table)
        raise
    for table in tables:
        release(connection, table)


def _within(connection: Any, verb: Callable[[Interests[Any], GuestSession], Awaitable[list[str]]]) -> list[str]:
    session = guest_session(connection)
    session.check_sync()
    interests = make_store(replace(Config(), database=NOWHERE[session.dialect]), SystemClock()).interests

    async def work() -> list[str]:
        if found := await interests.everywhere(session):
            await session.check_transaction()
        return [name for one in found for name in await verb(one, session)]

    return finish(work())
