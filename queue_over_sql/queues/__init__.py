"""One queue: its context, tables, record, kinds, and the operations on all of it."""
