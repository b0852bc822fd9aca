"""What a store promises of the audit log: acts in order, each with its outcome, and forgotten in time."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from conformance.bench import NOW, Bench, Suite, story
from penstock.store.nouns.audit import AuditRow


class Audit(Suite):
    """`store.nouns.Audit`."""

    @story
    async def test_acts_are_kept_in_order_with_their_outcomes(self, bench: Bench) -> None:
        audit, first, second = bench.store.audit, UUID(int=1), UUID(int=2)
        await audit.begin(first, NOW, "Ada", "operate", "pause", {"name": "mail"})
        await audit.begin(second, NOW + timedelta(seconds=1), "Grace", "edit", "resume", {})
        await audit.end(first, "paused")
        one = AuditRow(first, NOW, "Ada", "operate", "pause", {"name": "mail"}, "paused")
        two = AuditRow(second, NOW + timedelta(seconds=1), "Grace", "edit", "resume", {}, None)
        assert await audit.list(10) == [two, one]
        assert (await audit.list(1), await audit.list(10, second)) == ([two], [one])
        assert (await audit.list(10, who="Ad"), await audit.list(10, act="res")) == ([one], [two])
        assert await audit.list(10, who="Ada", act="resume") == []
        assert await audit.prune(NOW + timedelta(days=399), 10) == 0
        assert await audit.prune(NOW + timedelta(days=400), 10) == 1
        assert await audit.list(10) == [two]
