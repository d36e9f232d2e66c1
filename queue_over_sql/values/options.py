"""Names and defaults of options that several interfaces offer."""

from __future__ import annotations

from typing import Final

PUBLISH_OPTIONS: Final = (
    "key",
    "kind",
    "headers",
    "priority",
    "delay",
    "at",
    "max_attempts",
    "lease",
    "columns",
)
"""The options of a ``Publication``, in order; the queue's own columns come last."""

DEFAULT_PREFIX: Final = "queue_over_sql_"
"""The beginning of the names of database roles."""
