"""The statements that operations on a queue send, as text, for who shows them."""

from queue_over_sql.sql_listing import Statement, formatted, statements_of

__all__ = ["Statement", "formatted", "statements_of"]
