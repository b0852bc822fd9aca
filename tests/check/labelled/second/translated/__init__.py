"""Well-known examples of good and bad backends, in Python."""
