"""The whole conformance suite in one class."""

from __future__ import annotations

from penstock.testing.conformance.callmachine import CallsInAnyOrder
from penstock.testing.conformance.cancels import Cancels
from penstock.testing.conformance.catalog import Catalog
from penstock.testing.conformance.changes import Changes
from penstock.testing.conformance.crons import Crons
from penstock.testing.conformance.declaring import Declaring
from penstock.testing.conformance.gatemachine import GatesInAnyOrder
from penstock.testing.conformance.gates import Gates
from penstock.testing.conformance.interests import Interests
from penstock.testing.conformance.isolation import Isolation
from penstock.testing.conformance.jobs import Jobs
from penstock.testing.conformance.keys import Keys
from penstock.testing.conformance.leases import Leases
from penstock.testing.conformance.locks import Locks
from penstock.testing.conformance.machine import AnyOrder
from penstock.testing.conformance.mending import Mending
from penstock.testing.conformance.messages import Messages
from penstock.testing.conformance.moves import Moves
from penstock.testing.conformance.outboxcare import OutboxCare
from penstock.testing.conformance.outboxes import Outboxes
from penstock.testing.conformance.pools import Pools
from penstock.testing.conformance.rates import Rates
from penstock.testing.conformance.records import Records
from penstock.testing.conformance.retries import Retries
from penstock.testing.conformance.sessions import Sessions
from penstock.testing.conformance.settlements import Settlements
from penstock.testing.conformance.signals import Signals
from penstock.testing.conformance.sources import Sources
from penstock.testing.conformance.taskmachine import TasksInAnyOrder
from penstock.testing.conformance.tasks import Tasks
from penstock.testing.conformance.tokens import Tokens


class StoreSuite(
    Sessions,
    Isolation,
    Jobs,
    Settlements,
    Moves,
    Retries,
    Cancels,
    Pools,
    Gates,
    Keys,
    Rates,
    Crons,
    Interests,
    Declaring,
    Mending,
    Sources,
    Changes,
    Messages,
    Tasks,
    Records,
    Outboxes,
    OutboxCare,
    Leases,
    Locks,
    Tokens,
    Signals,
    Catalog,
    CallsInAnyOrder,
    GatesInAnyOrder,
    TasksInAnyOrder,
    AnyOrder,
):
    """What `store.contract` promises, as tests: inherit from it, and say what `Suite` asks."""
