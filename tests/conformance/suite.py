"""The whole conformance suite in one class."""

from __future__ import annotations

from conformance.callmachine import CallsInAnyOrder
from conformance.changes import Changes, Declaring
from conformance.crons import Crons
from conformance.doors import Doors
from conformance.gatemachine import GatesInAnyOrder
from conformance.interests import Interests
from conformance.jobs import Jobs
from conformance.keys import Keys
from conformance.locks import Leases, Locks
from conformance.moves import Moves
from conformance.outboxcare import OutboxCare
from conformance.outboxes import Outboxes
from conformance.pools import Pools
from conformance.records import Records
from conformance.sessions import Catalog, Isolation, Sessions, Signals
from conformance.taskmachine import TasksInAnyOrder
from conformance.tasks import Tasks
from conformance.tokens import Tokens


class StoreSuite(
    Sessions,
    Isolation,
    Jobs,
    Moves,
    Pools,
    Keys,
    Crons,
    Interests,
    Declaring,
    Changes,
    Tasks,
    Records,
    Outboxes,
    OutboxCare,
    Leases,
    Locks,
    Doors,
    Tokens,
    Signals,
    Catalog,
    CallsInAnyOrder,
    GatesInAnyOrder,
    TasksInAnyOrder,
):
    """What `store` promises, as tests: inherit from it, and say what `Suite` asks."""
