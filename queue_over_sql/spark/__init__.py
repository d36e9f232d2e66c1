"""The data pipeline around the queues, on Apache Spark through PySpark.

Needs the extra ``spark``. The format ``queue_over_sql`` reads a queue or its archive, consumes a
queue as a stream and publishes to one; see ``docs/spark.md``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from queue_over_sql.spark.failures import SettleReport, settle
    from queue_over_sql.spark.pipelines.history import ExportReport, export_history, history_of
    from queue_over_sql.spark.pipelines.load import LoadProgress, LoadReport, load
    from queue_over_sql.spark.pipelines.process import process, usual_consumer
    from queue_over_sql.spark.pipelines.report import ReportFiles, report
    from queue_over_sql.spark.reasons import in_short, raised_in_python
    from queue_over_sql.spark.sessions import JavaMissing, session
    from queue_over_sql.spark.source import QueueDataSource, register
    from queue_over_sql.spark.workers.coordinator import (
        FleetFailed,
        FleetProgress,
        FleetReport,
        WorkerReport,
        run_workers,
    )
    from queue_over_sql.spark.workers.handler_calls import send_by_value

_NAMES: Final = {
    "failures": ("SettleReport", "settle"),
    "pipelines.history": ("ExportReport", "export_history", "history_of"),
    "pipelines.load": ("LoadProgress", "LoadReport", "load"),
    "pipelines.process": ("process", "usual_consumer"),
    "pipelines.report": ("ReportFiles", "report"),
    "reasons": ("in_short", "raised_in_python"),
    "sessions": ("JavaMissing", "session"),
    "source": ("QueueDataSource", "register"),
    "workers.coordinator": (
        *("FleetFailed", "FleetProgress", "FleetReport", "WorkerReport", "run_workers"),
    ),
    "workers.handler_calls": ("send_by_value",),
}
_HOMES: Final = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "ExportReport",
    "FleetFailed",
    "FleetProgress",
    "FleetReport",
    "JavaMissing",
    "LoadProgress",
    "LoadReport",
    "QueueDataSource",
    "ReportFiles",
    "SettleReport",
    "WorkerReport",
    "export_history",
    "history_of",
    "in_short",
    "load",
    "process",
    "raised_in_python",
    "register",
    "report",
    "run_workers",
    "send_by_value",
    "session",
    "settle",
    "usual_consumer",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] in {"pyspark", "pyarrow", "pandas"}:
            msg = f"{error.name} is not installed: install the extra spark of queue-over-sql"
            raise ModuleNotFoundError(msg, name=error.name) from error
        raise


def __dir__() -> list[str]:
    return sorted(__all__)
