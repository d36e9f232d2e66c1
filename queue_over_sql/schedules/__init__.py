"""Schedules: messages that are published again and again, once per instant, by whichever server."""

from __future__ import annotations

from queue_over_sql.schedules.schedules import Schedule, Schedules

__all__ = ["Schedule", "Schedules"]
