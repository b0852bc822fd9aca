from .tables import Order as Order
from .tables import Product as Product
from .program import app as app
