"""The SQLite store keeps the contract of stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conformance.suite import StoreSuite
from stage.needs import examples

from penstock.config import Config
from penstock.store.session import Statement
from penstock.store.sql.dialect import qualify


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
