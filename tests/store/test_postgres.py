"""The PostgreSQL store keeps the contract of stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.contract import Statement, Store
from penstock.store.open import make_store
from penstock.testing.conformance.bench import StoreMaker
from penstock.testing.conformance.suite import StoreSuite


class TestPostgres(StoreSuite):
    slow = Statement("select pg_sleep(600)")

    machine_examples = 25  # each step is a round trip
    delete_lease = Statement("delete from penstock.lease where id = $1")

    @pytest.fixture(autouse=True)
    def _server(self, postgres_databases: Callable[[], str]) -> None:
        self.new_database = postgres_databases

    def make_database(self) -> StoreMaker:
        url = self.new_database()

        def make(**settings: Any) -> Store:
            return make_store(Config(database=url, **settings), SystemClock())

        return make
