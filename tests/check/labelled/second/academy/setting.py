"""The app, its pools, and what the rest of the program is declared with."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial

import penstock as ps
from penstock import App, Retry
from penstock import signed_in as members_only

academy = App()
REGION = os.environ.get("REGION", "eu")
ONE = 1

mails = academy.workpool("mails", max_parallelism=20)
certificates = academy.workpool("certificates", max_parallelism=5, default_retry=Retry(max_attempts=8, initial_backoff=30, base=3))
grades_in_order = academy.workpool("grades", max_parallelism=1, default_retry=Retry(max_attempts=3, initial_backoff=0.1, base=2))
payouts = academy.workpool("payouts", max_parallelism=1, default_retry=Retry.fixed(timedelta(hours=1)))  # expect: PEN018
ledger = academy.workpool("ledger", max_parallelism=ONE, default_retry=ps.Retry.series([5, 60, 3600]))  # expect: PEN018
backups = academy.workpool(name="backups", max_parallelism=1, default_retry=Retry(initial_backoff=120))  # expect: PEN018
mirror = academy.workpool("mirror", max_parallelism=1, default_retry=Retry.linear(timedelta(minutes=5), max_attempts=4))  # expect: PEN018
single = academy.workpool("single", max_parallelism=1)
patient = single.with_options(retry=Retry(max_attempts=12, initial_backoff=2, base=2))  # expect: PEN018
quick = single.with_options(retry=Retry(max_attempts=2, initial_backoff=0.2, base=2))
archive_pool = academy.workpool(
    "archive",
    max_parallelism=1,
    default_retry=Retry(max_attempts=9, initial_backoff=10, base=2),  # penstock: ignore[PEN018] archives may go in any order
)
unordered = academy.workpool("unordered", max_parallelism=2, default_retry=Retry.fixed(timedelta(hours=1)))

member_query = partial(academy.query, access=members_only)
