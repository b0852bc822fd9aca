"""Handlers are what callers, crons and other systems reach."""
