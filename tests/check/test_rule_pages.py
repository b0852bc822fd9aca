"""Each rule's page: its bad example breaks that rule and no other, its good one breaks none."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from penstock.check.checker import check
from penstock.check.ignoring import CODE
from penstock.check.rule import RULES

PREAMBLE = """
import logging
from datetime import UTC, date, datetime, timedelta

import httpx

from penstock import (
    ActionCtx, App, ApplicationError, Id, Index, MutationCtx, QueryCtx, Retry, Table, WorkflowCtx, public, signed_in
)

app = App()
sms = app.workpool("sms")
log = logging.getLogger(__name__)


class Booking(Table):
    customer: str
    starts_at: datetime
    status: str = "new"

    by_customer = Index("customer", "starts_at")


class AlreadySent(Exception): ...


async def send(*what: object) -> None: ...


@app.internal_mutation
async def add(ctx: MutationCtx, customer: str) -> Id[Booking]:
    return await ctx.db.insert(Booking(customer=customer, starts_at=ctx.now()))
"""
BEFORE = {
    "PEN009": """
async def bookings_of(ctx: QueryCtx, customer: str) -> list[Booking]:
    return await ctx.db.query(Booking).with_index(Booking.by_customer, customer=customer).take(20)
"""
}


@pytest.mark.parametrize("code", sorted({*RULES, CODE}))
def test_page(code: str, tmp_path: Path) -> None:
    text = (resources.files("penstock.check") / "pages" / f"{code}.md").read_text("utf-8")
    assert text.startswith(f"# {code}: ")
    bad, good = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for block, expected in ((bad, {code}), (good, set())):
        file = tmp_path / "program.py"
        file.write_text(f"{PREAMBLE}\n\n{BEFORE.get(code, '')}\n\n{block}", "utf-8")
        found = check([file]).findings
        extra = {"PEN003"} if code == CODE and expected else set()  # without a reason it is not ignored
        assert {one.code for one in found} == expected | extra, found


def test_the_page_of_all_rules_names_each() -> None:
    text = (Path(__file__).parents[2] / "docs" / "check.md").read_text("utf-8")
    for code, rule in RULES.items():
        mends = "yes" if "## Fix" in (resources.files("penstock.check") / "pages" / f"{code}.md").read_text() else ""
        assert f"| [{code}](../src/penstock/check/pages/{code}.md) | {rule.title} | {mends} |" in text
