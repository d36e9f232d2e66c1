"""Histories: what all processes did, and whether the queues kept their promises.

In each process: ``QueueService(url, observer=Recorder(folder))``. Afterwards ``check(folder)``, or
on the command line ``python -m queue_over_sql.testing.history FOLDER``.
"""

from queue_over_sql.testing.history.checker import check
from queue_over_sql.testing.history.journal import Event, History, Journal, Stamp, read
from queue_over_sql.testing.history.recorder import Recorder
from queue_over_sql.testing.history.verdict import Rules, Verdict, Violation

__all__ = [
    "Event",
    "History",
    "Journal",
    "Recorder",
    "Rules",
    "Stamp",
    "Verdict",
    "Violation",
    "check",
    "read",
]
