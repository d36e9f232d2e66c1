"""Arrow columns: their types, and how rows become columns."""
