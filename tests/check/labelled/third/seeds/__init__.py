"""The examples of the practices' pages, in penstock's words."""
