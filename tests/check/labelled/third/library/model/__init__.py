"""What the library's functions share."""

from .loans import due_loans as due_loans
from .loans import open_loans
from .patrons import Desk, current_patron
