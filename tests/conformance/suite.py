"""The whole conformance suite in one class."""

from __future__ import annotations

from conformance.callmachine import CallsInAnyOrder
from conformance.changes import Changes, Declaring
from conformance.crons import Crons
from conformance.doors import ApiKeys, Audit, DashboardSessions, Logbook, Requests
from conformance.gatemachine import GatesInAnyOrder
from conformance.interests import Interests
from conformance.jobs import Jobs
from conformance.keys import Keys, Rates
from conformance.locks import Leases, Locks
from conformance.moves import Moves
from conformance.outboxcare import OutboxCare
from conformance.outboxes import Outboxes
from conformance.pools import Gates, Pools
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
    Gates,
    Keys,
    Rates,
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
    Requests,
    ApiKeys,
    Audit,
    DashboardSessions,
    Logbook,
    Tokens,
    Signals,
    Catalog,
    CallsInAnyOrder,
    GatesInAnyOrder,
    TasksInAnyOrder,
):
    """What `store` promises, as tests: inherit from it, and say what `Suite` asks."""
