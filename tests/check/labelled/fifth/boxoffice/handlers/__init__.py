"""What the server offers."""

from . import desk, public

__all__ = ["desk", "public"]
