"""Every operation, noun by noun."""

from __future__ import annotations

from penstock.operations import crons, jobs, keys, locks, outbox, pools, tasks

OPERATIONS = (
    *tasks.OPERATIONS,
    *outbox.OPERATIONS,
    *crons.OPERATIONS,
    *pools.OPERATIONS,
    *jobs.OPERATIONS,
    *locks.OPERATIONS,
    *keys.OPERATIONS,
)
