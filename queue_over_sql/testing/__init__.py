"""Helpers for tests: handlers without threads, a clock, fixtures, servers, the contract suite.

`drain` runs handlers in the test's own thread, `published` returns published messages, and `Clock`
moves the database's time. `queue_over_sql.testing.aio` has all three for an event loop.

Modules
    ``queue_over_sql.testing.fixtures``
        pytest fixtures of a service on a database of its own. A project turns them on in its
        top-level ``conftest.py`` with ``pytest_plugins = ["queue_over_sql.testing.fixtures"]``.
    ``queue_over_sql.testing.plugin``
        pytest fixtures that run a test on every engine, for tests of the queues themselves.
    ``queue_over_sql.testing.contract``
        pytest cases that every engine must pass, also for your own engine.
    ``queue_over_sql.testing.servers``
        private database servers, from local programs or containers.
"""

from queue_over_sql.testing.clock import Clock
from queue_over_sql.testing.handlers import drain, published

__all__ = ["Clock", "drain", "published"]
