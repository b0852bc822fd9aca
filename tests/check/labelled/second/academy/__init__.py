"""A platform for courses: right and wrong, side by side."""
