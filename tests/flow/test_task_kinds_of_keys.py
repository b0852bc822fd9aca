"""Looking at all rows goes on after keys of any kind: empty and odd texts, bytes, times."""

from __future__ import annotations

import types
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from stage.outboxes import run_sql
from stage.reactive import Stage

from penstock import Table
from penstock.services import reconciler

ODD_TEXTS = ("", " ", "  ", "0", "a", "A", "á", "z", "\\", "'", '"', "%", "_", "[]", "null", "ﬀ", "🂡", "a\nb", "aa")
MIDNIGHT = datetime(2030, 1, 1, tzinfo=UTC)

# The type of a key in SQLite and in PostgreSQL, and keys.
KINDS: dict[type, tuple[str, str, list[Any]]] = {
    str: ("text", "text", list(ODD_TEXTS)),
    int: ("integer", "bigint", [0, -1, 1, 9, 10, -(2**63), 2**63 - 1, 2**53 + 1]),
    float: ("real", "double precision", [0.0, -1.5, 0.1, 1e300, -1e-300, 5e-324, 2.0**53]),
    UUID: ("text", "uuid", [UUID(int=0), UUID(int=1), UUID(int=2**127), UUID(int=2**128 - 1)]),
    bytes: ("blob", "bytea", [b"", b"\0", b"\0\0", b"a", b"\\x61", b"\xff", bytes(range(256))]),
    date: ("text", "date", [date(1, 1, 1), date(1969, 12, 31), date(2030, 1, 1), date(9999, 12, 31)]),
    datetime: ("text", "timestamptz", [MIDNIGHT + timedelta(microseconds=step) for step in (0, 1, 10, 10**12)]),
    bool: ("boolean", "boolean", [False, True]),
}


def table_with_key(kind: type) -> Any:
    """A table of another program."""
    options = {"source": f"odd_{kind.__name__.lower()}", "key": "key", "managed": False}
    return types.new_class(f"Odd{kind.__name__}", (Table,), options, lambda space: space.update(
        __annotations__={"key": kind}, __module__=__name__
    ))  # fmt: skip


def literal(value: Any, *, postgres: bool) -> str:
    """A value as SQL."""
    match value:
        case bytes():
            return f"'\\x{value.hex()}'::bytea" if postgres else f"x'{value.hex()}'"
        case bool():
            return str(value).lower()
        case float():
            return repr(value) + ("::float8" if postgres else "")
        case int():
            return f"({value})" if value > -(2**63) else f"({value + 1} - 1)"
        case datetime():
            return f"'{value.isoformat(timespec='microseconds')}'"
        case _:
            return "'" + str(value).replace("'", "''") + "'"


@pytest.mark.both_stores
async def test_f21_it_goes_on_after_keys_of_any_kind(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are looked at one at a time, each by another planner, which knows only what is stored."""
    monkeypatch.setattr(reconciler, "_AT_ONCE", 1)
    postgres = database_url.startswith("postgres")
    stage = Stage()
    for kind, (lite, server, keys) in KINDS.items():
        name = kind.__name__.lower()
        await run_sql(
            database_url,
            f"create table odd_{name} (key {server if postgres else lite} primary key)",
            *(f"insert into odd_{name} values ({literal(key, postgres=postgres)})" for key in keys),
        )
        stage.task(table_with_key(kind), name)
    async with stage.open(database_url) as test:
        for _ in range(3 * sum(len(keys) for *_, keys in KINDS.values()) + 5 * len(KINDS)):
            planner = test.make_service("planner")
            await planner.tick()
            await planner.finish()
            if not any(task.reconciling for task in await test.engine.store.tasks.list()):
                break
        else:
            pytest.fail("it goes on for ever")
        await test.run_until_idle()
    for kind, (*_, keys) in KINDS.items():
        ran = [one.doc_id for one in stage.ran if one.task == kind.__name__.lower()]
        assert sorted(ran) == sorted(keys), "each once"
