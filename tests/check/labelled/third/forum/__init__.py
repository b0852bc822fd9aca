"""A forum, with its tests."""
from .board import app as app
