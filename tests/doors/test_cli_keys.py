"""``penstock keys``: a key is shown once, listed without its secret, and revoked by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.identity.api_key import PREFIX

if TYPE_CHECKING:
    from doors.cli_fixtures import Console

pytest_plugins = ("doors.cli_fixtures",)


def test_a_key_is_created_listed_and_revoked(console: Console) -> None:
    console.write_bookings()
    console.ok("migrate")
    assert console.ok("keys").out == "no keys\n"
    made = console.ok("keys", "create", "billing", "--scope", "read", "--scope", "write", "--expires", "90d")
    key = made.out.strip()
    assert key.startswith(PREFIX)
    assert "cannot be shown again" in made.err
    assert console.ok("keys", "create", "other", "--json").json["key"] != key
    (first, second) = console.ok("keys", "--json").json["keys"]
    assert (first["name"], first["scopes"], second["expires_at"]) == ("billing", ["read", "write"], None)
    listed = console.ok("keys").out
    assert "read write" in listed
    assert PREFIX not in listed
    assert key.encode() not in (console.folder / "penstock.db").read_bytes()
    assert "already" in console("keys", "create", "billing").err
    assert "how long the key holds" in console("keys", "create", "late", "--expires", "0d").err
    assert "1 to 100 letters" in console("keys", "create", "a b").err
    assert console.ok("keys", "revoke", "billing").err == "billing is revoked.\n"
    assert "There is no key" in console("keys", "revoke", "billing").err
