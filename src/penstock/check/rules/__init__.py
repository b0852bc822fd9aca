"""All rules, which importing this declares."""

from penstock.check.rules import awaiting, calling, declaring, outside, reading, working

__all__ = ["awaiting", "calling", "declaring", "outside", "reading", "working"]
