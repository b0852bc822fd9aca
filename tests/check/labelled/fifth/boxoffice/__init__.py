"""A box office: seats are held, sold and refunded."""
