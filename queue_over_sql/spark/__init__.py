"""The data pipeline around the queues, on Apache Spark through PySpark.

Needs the extra ``spark``. The format ``queue_over_sql`` reads a queue or its archive, consumes a
queue as a stream and publishes to one; see ``docs/spark.md``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from queue_over_sql.spark.failures import SettleReport, settle
    from queue_over_sql.spark.pipelines.exporting import ExportReport
    from queue_over_sql.spark.pipelines.history import export_history, history_of
    from queue_over_sql.spark.pipelines.load import LoadProgress, LoadReport, load
    from queue_over_sql.spark.pipelines.process import process
    from queue_over_sql.spark.pipelines.report import ReportFiles, report
    from queue_over_sql.spark.sessions import JavaMissing, session
    from queue_over_sql.spark.source import QueueDataSource, register
    from queue_over_sql.spark.workers.coordinator import (
        FleetFailed,
        FleetProgress,
        FleetReport,
        WorkerReport,
        run_workers,
    )

_HOMES: Final = {
    "ExportReport": "queue_over_sql.spark.pipelines.exporting",
    "FleetFailed": "queue_over_sql.spark.workers.coordinator",
    "FleetProgress": "queue_over_sql.spark.workers.coordinator",
    "FleetReport": "queue_over_sql.spark.workers.coordinator",
    "JavaMissing": "queue_over_sql.spark.sessions",
    "LoadProgress": "queue_over_sql.spark.pipelines.load",
    "LoadReport": "queue_over_sql.spark.pipelines.load",
    "QueueDataSource": "queue_over_sql.spark.source",
    "ReportFiles": "queue_over_sql.spark.pipelines.report",
    "SettleReport": "queue_over_sql.spark.failures",
    "WorkerReport": "queue_over_sql.spark.workers.coordinator",
    "export_history": "queue_over_sql.spark.pipelines.history",
    "history_of": "queue_over_sql.spark.pipelines.history",
    "load": "queue_over_sql.spark.pipelines.load",
    "process": "queue_over_sql.spark.pipelines.process",
    "register": "queue_over_sql.spark.source",
    "report": "queue_over_sql.spark.pipelines.report",
    "run_workers": "queue_over_sql.spark.workers.coordinator",
    "session": "queue_over_sql.spark.sessions",
    "settle": "queue_over_sql.spark.failures",
}

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
    "load",
    "process",
    "register",
    "report",
    "run_workers",
    "session",
    "settle",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        return getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] in {"pyspark", "pyarrow", "pandas"}:
            msg = f"{error.name} is missing: install the extra spark of queue-over-sql"
            raise ModuleNotFoundError(msg, name=error.name) from error
        raise


def __dir__() -> list[str]:
    return sorted(__all__)
