"""The commands about reactive tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from stage import desk
from stage.desk import on

from penstock.testing import TestApp

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)


@pytest.fixture
def shop(console: Console, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """A desk where orders named a and b fail."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("PENSTOCK_APP", "stage.desk:app")
    desk.failing.update("ab")
    yield console
    desk.failing.clear()


async def put_and_run(test: TestApp) -> list[str]:
    made = await test.run_mutation(desk.put, ["a", "b", "easy"])
    await test.run_until_idle(raise_errors=False)
    return [*made]


def test_f24_tasks_are_shown_and_explained_and_rows_are_changed_only_by_a_filter(
    shop: Console, database_url: str
) -> None:
    first, second, easy = on(desk.app, database_url, put_and_run)
    assert "ship" in shop.ok("tasks").out
    _, task = shop.ok("tasks", "--json").json["tasks"]
    assert (task["name"], task["failed"], task["ready"], task["declared"]) == ("ship", 2, 0, True)
    assert shop.ok("tasks", "records", "ship", "--count").out.strip() in {"2 failed, 1 success", "1 success, 2 failed"}
    listed = shop.ok("tasks", "records", "ship", "--state", "failed, canceled").out
    assert first in listed
    assert easy not in listed
    assert "ConnectionError: no way for a" in listed
    one = shop.ok("tasks", "records", "ship", "--limit", "1", "--order", "key", "--json").json
    two = shop.ok("tasks", "records", "ship", "--order", "key", "--after", one["next"], "--json").json
    assert {record["key"] for record in [*one["records"], *two["records"]]} == {first, second, easy}
    assert "amount" not in str(two), "what was captured is not shown"
    assert "state             failed" in shop.ok("tasks", "show", "ship", first).out
    explained = shop.ok("tasks", "explain", "ship", first).out
    assert "failed at" in explained
    assert "no way for a" in explained
    assert shop.ok("tasks", "explain", "ship", first, "--json").json["matches"] is True

    listed = shop.ok("tasks", "records", "ship", "--rows", "name in ('a', 'easy')", "--json").json["records"]
    assert {record["key"] for record in listed} == {first, easy}
    assert (
        shop.ok("tasks", "records", "--table", "order_of_admins", "--rows", "name == 'b'", "--count").out.strip()
        == "1 failed"
    )
    assert len(shop.ok("tasks", "records", "--table", "order_of_admins", "--json").json["records"]) == 3
    assert shop("tasks", "records", "ship", "--rows", "name == 'b'", "--order", "due").code == 1
    assert shop("tasks", "records", "--state", "dirty").code != 0

    for verb in ("retry", "cancel", "skip", "delete"):
        for sure in ((), ("--yes",)):
            refused = shop("tasks", verb, *sure)
            assert refused.code != 0
            assert f"Say which rows to {verb}" in refused.err
    assert "Retry 3 rows?" in shop("tasks", "retry", "--all").err
    assert len(shop.ok("tasks", "records", "--state", "failed", "--json").json["records"]) == 2
    desk.failing.clear()
    assert "1 row retried" in shop.ok("tasks", "retry", "ship", "--error", "for b").err
    asked = shop("tasks", "retry", "ship", "--state", "failed,pending")
    assert asked.code != 0
    assert "Retry 2 rows?" in asked.err
    failed = ("--rows", 'name == "a" and amount is not None', "--state", "failed", "--json")
    assert shop.ok("tasks", "retry", "ship", *failed).json == {"found": 1, "changed": 1}
    assert "3 rows retried, of 3." in shop.ok("tasks", "retry", "--all", "--yes").err
    assert "3 rows skipped, of 3." in shop.ok("tasks", "skip", "ship", "--yes").err
    assert "There are no such rows." in shop.ok("tasks", "cancel", "ship").err
    assert "3 rows forgotten, of 3." in shop.ok("tasks", "delete", "ship", "--yes").err
    assert shop.ok("tasks", "records").out.strip() == "no rows"
    for verb in ("pause", "reconcile"):
        shop.ok("tasks", verb, "ship")
    assert "paused, looking at all rows: 0 rows so far" in shop.ok("tasks").out


def test_tasks_and_conditions_that_there_are_not_are_refused(shop: Console) -> None:
    shop.ok("migrate")
    for words in (("pause", "shipp"), ("records", "shipp", "--rows", "name == 'a'")):
        refused = shop("tasks", *words)
        assert (refused.code != 0, "no reactive task 'shipp'" in " ".join(refused.err.split())) == (True, True)
    for verb in ("records", "retry", "cancel", "skip", "delete"):
        for words, part in (
            (("ship", "--rows", "nam == 'a'"), "There is name"),
            (("ship", "--rows", "__import__('os').remove('open')"), "cannot be called here"),
            (("ship", "--rows", ""), "0 characters"),
            (("--rows", "name == 'a'"), "the table is unknown"),
            (("--table", "orders", "--rows", "name == 'a'"), "declares no table 'orders'"),
        ):
            refused = shop("tasks", verb, *words)
            assert refused.code == 2, refused.err
            assert part in " ".join(refused.err.split())
            assert "Traceback" not in refused.err
