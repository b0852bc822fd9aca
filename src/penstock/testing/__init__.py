"""The testing kit: an app on a real store, a clock you move, and gates for races."""

from penstock.observe.practices import Finding
from penstock.testing.app import JobsFailed, SeenRun, TestApp
from penstock.testing.clock import TestClock
from penstock.testing.gates import gate, raising
from penstock.testing.replaying import ReplayFailed, replay

__all__ = ["Finding", "JobsFailed", "ReplayFailed", "SeenRun", "TestApp", "TestClock", "gate", "raising", "replay"]
