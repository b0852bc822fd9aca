"""The testing kit: an app on a real store, a clock you move, gates for races, and the conformance suite of stores."""

from penstock.testing.app import JobsFailed, TestApp
from penstock.testing.clock import TestClock
from penstock.testing.gates import gate, raising

__all__ = ["JobsFailed", "TestApp", "TestClock", "gate", "raising"]
