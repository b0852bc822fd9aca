"""The SQLite store keeps the contract of stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conformance.bench import StoreMaker
from conformance.suite import StoreSuite
from stage.examples import examples

from penstock.clock import SystemClock
from penstock.config import Config
from penstock.store.open import make_store
from penstock.store.session import Statement
from penstock.store.sql.dialect import qualify
from penstock.store.store import Store


class TestSqlite(StoreSuite):
    one_writer = True
    slow = Statement(
        "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n", bounded=False
    )
    machine_examples, task_examples = examples(80), examples(80)
    delete_lease = Statement(qualify("delete from penstock_lease where id = ?", Config().schema))

    @pytest.fixture(autouse=True)
    def _files(self, suite_files: Callable[[], str]) -> None:
        self.new_database = suite_files

    def make_database(self) -> StoreMaker:
        url = self.new_database()

        def make(**settings: Any) -> Store:
            return make_store(Config(database=url, **settings), SystemClock())

        return make
