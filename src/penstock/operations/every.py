"""Every operation, noun by noun."""

from __future__ import annotations

from penstock.operations import crons, jobs, keys, locks, outbox, pools, tasks, workflows

_NOUNS = (tasks.noun, outbox.noun, crons.noun, pools.noun, jobs.noun, workflows.noun, locks.noun, keys.noun)
OPERATIONS = tuple(one for noun in _NOUNS for one in noun.operations)
