"""Repositories read and write one table each."""
