"""Workflows, right and wrong."""
