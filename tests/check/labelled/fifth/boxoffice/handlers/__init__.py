"""What the server offers."""

from . import desk, public
