"""The PostgreSQL store keeps the contract of stores through PgBouncer, which lends connections by the transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conformance.bench import StoreMaker
from conformance.locks import Leases, Locks
from conformance.sessions import Isolation, Sessions, Signals
from stage.servers import PgBouncer

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.open import make_store
from penstock.store.session import Statement
from penstock.store.store import Store


class TestPgBouncer(Sessions, Isolation, Signals, Leases, Locks):
    """What depends on the connection; each other statement is one that `TestPostgres` has run."""

    slow = Statement("select pg_sleep(600)")

    delete_lease = Statement("delete from penstock.lease where id = $1")

    @pytest.fixture(autouse=True)
    def _server(self, suite_databases: Callable[[], str], pooler: PgBouncer) -> None:
        self.new_database, self.pooler = suite_databases, pooler

    def make_database(self) -> StoreMaker:
        direct = self.new_database()
        pooled = self.pooler.through(direct)

        def make(**settings: Any) -> Store:
            return make_store(Config(database=pooled, direct_database=direct, **settings), SystemClock())

        return make
