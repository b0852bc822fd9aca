"""Alembic's environment: `include_name` leaves penstock's tables to penstock."""

import asyncio

from alembic import context
from rental.database import engine_url
from rental.models import Base
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from penstock.migrations import include_name


def run(connection: Connection) -> None:
    context.configure(
        connection=connection, target_metadata=Base.metadata, include_schemas=True, include_name=include_name
    )
    with context.begin_transaction():
        context.run_migrations()


async def main() -> None:
    engine = create_async_engine(engine_url())
    async with engine.connect() as connection:
        await connection.run_sync(run)
    await engine.dispose()


asyncio.run(main())
