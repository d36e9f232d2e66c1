"""Schedules: messages that are published again and again, once per instant, by whichever server.

``crontab`` and ``triggers`` say which instants there are, ``instants`` which of them are due now;
``definitions`` is what is stored; ``acts``, ``access`` and ``firing`` work on the database.
"""

from __future__ import annotations

from queue_over_sql.schedules.schedules import Schedule, Schedules

__all__ = ["Schedule", "Schedules"]
