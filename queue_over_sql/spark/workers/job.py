"""The one job of Spark that is a fleet, run beside the driver's own thread."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Final

from queue_over_sql.errors import QueueError
from queue_over_sql.spark.workers.plan import REPORT_SCHEMA, WorkerReport
from queue_over_sql.spark.workers.task import work_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from queue_over_sql.spark.workers.plan import WorkersPlan


# What Spark says of a job that ended for no reason of ours: by its error class, where it has one.
_CANCELLED: Final = ("SPARK_JOB_CANCELLED", "OPERATION_CANCELED", "cancelled", "was shut down")
_LOST: Final = (
    *("exited unexpectedly", "ExecutorLostFailure", "Connection reset", "EOFException"),
    *("FetchFailed", "worker lost", "Python worker died", "WORKER_EXITED"),
)


class FleetFailed(QueueError):
    """Spark's job of a fleet was cancelled, or failed; what its workers held was given back."""


class JobEnded(Exception):
    """The job ended before its workers did.

    Attributes:
        reason: Spark's error.
    """

    def __init__(self, reason: BaseException) -> None:
        super().__init__(str(reason))
        self.reason = reason


class WorkersJob:
    """A job whose tasks are workers.

    Args:
        spark: the session.
        plan: of each worker.
        workers: how many.
    """

    def __init__(self, spark: SparkSession, plan: WorkersPlan, workers: int) -> None:
        self._spark = spark
        self._plan = plan
        self._workers = workers
        self._tag = f"queue-over-sql-{uuid.uuid4()}"
        self._reports: list[WorkerReport] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=self._tag, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def running(self, seconds: float) -> bool:
        """Wait for its end for so long; tells whether it runs still."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def cancel(self) -> None:
        """End the job, whatever its workers are doing."""
        self._spark.interruptTag(self._tag)

    def reports(self) -> list[WorkerReport]:
        """What the workers told at their ends.

        Raises:
            JobEnded: the job failed, or was cancelled.
        """
        if self._error is not None:
            raise JobEnded(self._error)
        return self._reports

    def _run(self) -> None:
        try:
            # Tags belong to the thread, and reach sessions of Spark Connect, too.
            self._spark.addTag(self._tag)
            rows = (
                self._spark.range(0, self._workers, 1, self._workers)
                .mapInArrow(work_of(self._plan), REPORT_SCHEMA)
                .collect()
            )
            self._reports = [WorkerReport(**row.asDict()) for row in rows]
        except BaseException as error:  # noqa: BLE001 - raised where it is asked for
            self._error = error


def lost_workers(error: BaseException) -> bool:
    """Whether a job failed because Python or an executor went away, not because of our words."""
    text = f"{error}"
    if any(sign in text for sign in _CANCELLED):
        return False
    return any(sign in text for sign in _LOST)
