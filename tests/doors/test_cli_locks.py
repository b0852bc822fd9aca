"""``penstock locks``: who holds which, and taking one away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock import App, LockLost

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)


def test_locks_are_listed_and_taken_away(console: Console) -> None:
    console.write_bookings()
    console.ok("migrate")
    assert console.ok("locks").out == "no locks\n"
    app = App(database=f"sqlite:///{console.folder / 'penstock.db'}")
    with app.sync.open(push_schema=False) as backend, backend.with_lock("account:eve"):
        lock = backend.with_lock("account:ada")
        fence = lock.__enter__().fence
        (first, second) = console.ok("locks", "--json").json["locks"]
        assert (first["key"], second["key"], second["fence"], second["wanted"]) == (
            "account:eve",
            "account:ada",
            fence,
            False,
        )
        lines = [line.split() for line in console.ok("locks").out.splitlines()]
        assert lines[2][:3] == ["account:ada", str(fence), second["holder"]]
        assert len(console.ok("locks", "--limit", "1", "--json").json["locks"]) == 1
        assert "--fence" in console("locks", "release", "account:ada").err
        refused = console("locks", "release", "account:ada", "--fence", str(fence + 1))
        assert refused.code != 0
        assert "does not have the holder" in refused.err
        assert "account:ada is free." in console.ok("locks", "release", "account:ada", "--fence", str(fence)).err
        with pytest.raises(LockLost, match="was taken away"):
            lock.__exit__(None, None, None)
        with backend.with_lock("account:ada") as again:
            assert again.fence > fence
