"""The whole conformance suite in one class."""

from __future__ import annotations

from penstock.testing.conformance.cancels import Cancels
from penstock.testing.conformance.catalog import Catalog
from penstock.testing.conformance.crons import Crons
from penstock.testing.conformance.isolation import Isolation
from penstock.testing.conformance.jobs import Jobs
from penstock.testing.conformance.leases import Leases
from penstock.testing.conformance.machine import AnyOrder
from penstock.testing.conformance.pools import Pools
from penstock.testing.conformance.sessions import Sessions
from penstock.testing.conformance.settlements import Settlements
from penstock.testing.conformance.signals import Signals


class StoreSuite(Sessions, Isolation, Jobs, Settlements, Cancels, Pools, Crons, Leases, Signals, Catalog, AnyOrder):
    """What `store.contract` promises, as tests: inherit from it, and say what `Suite` asks."""
