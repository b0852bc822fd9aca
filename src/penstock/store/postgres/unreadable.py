"""Finds the value that the driver could not read: its row and its column. The driver names neither."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg

from penstock.errors import PenstockError
from penstock.store.postgres.dialect import POSTGRES

Ask = Callable[..., Awaitable[Any]]  # a method of the connection, by its name


def is_unreadable(error: BaseException | None) -> bool:
    """Whether the driver could not read a value of an answer."""
    otherwise = (asyncpg.InterfaceError, UnicodeEncodeError)  # of a parameter
    return isinstance(error, OverflowError | ValueError) and not isinstance(error, otherwise)


async def find(ask: Ask, sql: str, args: Sequence[Any]) -> tuple[str, str, dict[str, Any]] | None:
    """The column, the value as text, and the row as JSON has it: the driver is given the texts of each column again."""
    columns = (await ask("prepare", sql)).get_attributes()
    texts = ", ".join(f"found.{POSTGRES.quote(one.name)}::text" for one in columns)
    rows = await ask("fetch", f"select {texts}, row_to_json(found)::text from ({sql}) as found", *args)
    for place, one in enumerate(columns):
        again = f'select given::"{one.type.schema}"."{one.type.name}" from unnest($1::text[]) as given'
        part = rows
        while not await _can_read(ask, again, [row[place] for row in part]):
            if len(part) == 1:
                return one.name.removesuffix("~"), part[0][place], json.loads(part[0][-1])
            half = part[: len(part) // 2]
            part = part[len(half) :] if await _can_read(ask, again, [row[place] for row in half]) else half
    return None


async def _can_read(ask: Ask, sql: str, texts: Sequence[str]) -> bool:
    try:
        await ask("fetch", sql, texts)
    except PenstockError as error:
        if is_unreadable(error.__cause__):
            return False
        raise
    return True
