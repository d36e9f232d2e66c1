"""Schedules: messages that are published regularly, once for each due time, by any server."""

from __future__ import annotations

from queue_over_sql.schedules.schedules import Schedule, Schedules

__all__ = ["Schedule", "Schedules"]
