"""The example of locks: a reactive task that takes one; it runs to its end on both stores, against a bank over HTTP."""

from __future__ import annotations

import re

from stage.programs import run_example


def test_payments_to_an_account_do_not_write_over_each_other(database_url: str) -> None:
    said = run_example("locks/accounts", database_url)
    assert "30 payments of 10 were made: {'account 0': 100, 'account 1': 100, 'account 2': 100}." in said
    late = re.search(r"The bank refuses who comes late: (\d+) is over: (\d+) was here", said)
    assert late is not None
    assert int(late[1]) < int(late[2])
    assert "So does the database." in said
