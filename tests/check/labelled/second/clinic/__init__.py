"""A clinic."""
