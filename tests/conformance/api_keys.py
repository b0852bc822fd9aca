"""What a store promises of API keys: a name is one key's, and a revoked one is gone."""

from __future__ import annotations

from datetime import timedelta

from conformance.bench import NOW, Bench, Suite, story
from penstock.store.nouns.api_keys import ApiKeyRow


class ApiKeys(Suite):
    """`store.nouns.ApiKeys`."""

    @story
    async def test_a_key_is_found_by_its_hash_until_it_is_revoked(self, bench: Bench) -> None:
        keys, until = bench.store.api_keys, NOW + timedelta(days=90)
        assert await keys.create("b", "hash b", ["read", "write"], NOW, until)
        assert await keys.create("a", "hash a", [], NOW, None)
        assert not await keys.create("a", "another", [], NOW, None)
        b = ApiKeyRow("b", ("read", "write"), NOW, until)
        assert (await keys.find("hash b"), await keys.find("another")) == (b, None)
        assert await keys.list() == [ApiKeyRow("a", (), NOW, None), b]
        assert (await keys.revoke("b"), await keys.revoke("b")) == (True, False)
        assert await keys.find("hash b") is None
