"""A lending library with several branches."""

from .application import app, couriers
from .holdings import Item, Loan, Reader, State, Title

__all__ = ["Item", "Loan", "Reader", "State", "Title", "app", "couriers"]
