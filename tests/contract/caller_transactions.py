"""The two kinds of a caller's own transaction: a connection, and a session of the ORM."""

from queue_over_sql.testing.contract.state import OPENERS, Caller, Opener, opened

__all__ = ["OPENERS", "Caller", "Opener", "opened"]
