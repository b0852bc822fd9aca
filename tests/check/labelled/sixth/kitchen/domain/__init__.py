"""Tables and words of the kitchen, as one import."""

from .tables import Cook, Dish, Item, Shift, Supplier, Table_, Ticket
from .words import cook_of_caller, note, open_tickets, total_of

__all__ = ["Cook", "Dish", "Item", "Shift", "Supplier", "Table_", "Ticket", "cook_of_caller", "note", "open_tickets", "total_of"]
