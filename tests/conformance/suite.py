"""The whole conformance suite in one class."""

from __future__ import annotations

from conformance.api_keys import ApiKeys
from conformance.audit import Audit
from conformance.callmachine import CallsInAnyOrder
from conformance.catalog import Catalog
from conformance.changes import Changes
from conformance.crons import Crons
from conformance.dashboard_sessions import DashboardSessions
from conformance.declaring import Declaring
from conformance.gatemachine import GatesInAnyOrder
from conformance.gates import Gates
from conformance.interests import Interests
from conformance.isolation import Isolation
from conformance.jobs import Jobs
from conformance.keys import Keys
from conformance.leases import Leases
from conformance.locks import Locks
from conformance.logbook import Logbook
from conformance.machine import AnyOrder
from conformance.moves import Moves
from conformance.outboxcare import OutboxCare
from conformance.outboxes import Outboxes
from conformance.pools import Pools
from conformance.rates import Rates
from conformance.records import Records
from conformance.requests import Requests
from conformance.sessions import Sessions
from conformance.signals import Signals
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
    AnyOrder,
):
    """What `store` promises, as tests: inherit from it, and say what `Suite` asks."""
