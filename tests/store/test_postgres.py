"""The PostgreSQL store keeps the contract of stores."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from conformance.bench import AGAIN, NOW, new_job
from conformance.suite import StoreSuite
from stage.needs import examples

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.errors import DatabaseUnavailable
from penstock.store.open import make_store
from penstock.store.postgres.connections import Connections
from penstock.store.postgres.dialect import POSTGRES
from penstock.store.postgres.newjobs import pieces
from penstock.store.postgres.route import Route, servers
from penstock.store.push.migrate import push
from penstock.store.session import Statement
from penstock.store.sql.dialect import qualify


class TestPostgres(StoreSuite):
    slow = Statement("select pg_sleep(600)")

    machine_examples, task_examples = examples(80), examples(80)
    delete_lease = Statement(qualify("delete from penstock.lease where id = $1", Config().schema))

    @pytest.fixture(autouse=True)
    def _server(self, suite_databases: Callable[[], str]) -> None:
        self.new_database = suite_databases


def test_a_url_names_one_server_or_several() -> None:
    one, standbys = "postgresql://a:b,c@h:1/d?sslmode=require", "postgresql://h,i/d?target_session_attrs=prefer-standby"
    assert servers(one) == servers(standbys) == servers("postgresql:///d") == [{}]
    # Newer releases of Python read a bracketed address only as the first host.
    for url in ("postgresql://a:b@[::1]:2,h:1,i/d", "postgresql://a@/d?host=[::1],h,i&port=2,1,5432"):
        assert [(at["host"], at["port"] or 5432) for at in servers(url)] == [("::1", 2), ("h", 1), ("i", 5432)], url
    assert servers("postgresql://%2Ftmp,i/d?port=7") == [{"host": "/tmp", "port": 7}, {"host": "i", "port": 7}]


async def test_a_server_that_is_silent_or_takes_no_writes_keeps_nobody_from_the_others(postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    user, _, _ = parts.netloc.rpartition("@")
    host = parse_qs(parts.query).get("host", [parts.hostname or "127.0.0.1"])[0]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        query = f"host=127.0.0.1,{host}&port={silent.getsockname()[1]},{parts.port or 5432}&target_session_attrs="
        route = Route(parts._replace(netloc=f"{user}@", query=query + "read-write").geturl(), 30.0, 30.0)
        with pytest.raises(TimeoutError):
            await route.open(0.2, None)
        for _ in range(2):  # the one that has answered is asked first
            await (await route.open(60.0, None)).close()
    query = f"host={host},{host}&port={parts.port or 5432}&target_session_attrs=standby"
    standby = Route(parts._replace(netloc=f"{user}@", query=query).geturl(), 30.0, 30.0)
    with pytest.raises(DatabaseUnavailable, match="None of the hosts match"):
        await Connections(standby, size=1, wait=5.0, statement_timeout=30.0, dialect=POSTGRES).connect()


JOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "of many kinds": {"kind": "action", "priority": -32_000, "retry": AGAIN, "pool": "žluť", "on_complete": "a:b"},
    "later": {"delay": 0.000001, "priority": 32_000, "keep": 1.5},
    "with a key": {"concurrency_key": "kůň", "key": "k"},
    "later with a key": {"concurrency_key": "", "delay": 60},
}


async def test_copies_of_jobs_that_are_alike_are_as_a_statement_writes_them(postgres_url: str) -> None:
    texts = ["{}", '{"text":"žluťoučký 🐎"}', '{"text":"' + "x" * 100_000 + '"}']
    store = make_store(Config(database=postgres_url), SystemClock())
    await store.open()
    await push(store, [])
    connection = await asyncpg.connect(postgres_url)
    try:
        for name, asked in JOBS.items():
            jobs = [replace(new_job(**asked), args=texts[number % 3]) for number in range(150)]
            written = list[Any]()
            for copies in (False, True):
                session = await store.begin_write()
                if copies:
                    await store.jobs.enqueue_alike(session, iter(jobs), NOW)
                else:
                    for job in jobs:
                        await store.jobs.enqueue(session, [job], NOW)
                await session.commit()
                rows = list[Any]()
                for table in ("ready_job", "scheduled_job"):
                    rows += await connection.fetch(store.dialect.qualify(f"delete from penstock.{table} returning *"))
                assert len(rows) == 150
                written.append(
                    sorted((column, str(value)) for row in rows for column, value in row.items() if column != "seq")
                )
            assert written[0] == written[1], name
    finally:
        await connection.close()
        await store.close()


def test_pieces_hold_all_rows_and_are_neither_small_nor_large() -> None:
    rows = [bytes([number % 256]) * (1000 if number % 7 else 90_000) for number in range(200)]
    sent = list(pieces(iter(rows)))
    assert b"".join(sent) == b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"".join(rows) + b"\xff\xff"
    assert all(64 * 1024 <= len(piece) <= 64 * 1024 + 90_019 for piece in sent[:-1])
    assert list(pieces(iter([]))) == [b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\xff\xff"]
