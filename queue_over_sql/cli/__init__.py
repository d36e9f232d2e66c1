"""The ``queue-over-sql`` command: queues, messages, workers and the demo from a terminal."""

from __future__ import annotations

from queue_over_sql.cli.app import main

__all__ = ["main"]
