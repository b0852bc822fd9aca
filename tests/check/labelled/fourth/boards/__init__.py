"""Boards and cards, ported from Convex with its names."""
