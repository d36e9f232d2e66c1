"""The entry point by which Spark finds the format ``queue_over_sql``.

Spark imports every top-level module whose name begins with ``pyspark_`` when it searches for a
format, so this module must not fail or take long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue_over_sql.spark.source import QueueDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from queue_over_sql.spark.source import QueueDataSource

    return QueueDataSource
