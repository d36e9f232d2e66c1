"""Workers: Spark's executors run a function on the messages of a queue, each as a consumer.

There is no stream and no checkpoint. Each worker claims, handles and acks in its own transactions,
as every ``Worker`` does. The driver is also a consumer, which claims nothing. The workers run as
long as it lives, and its reaper releases messages of lost workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

from queue_over_sql import inside
from queue_over_sql.errors import QueueError
from queue_over_sql.inside.workers import check_kind
from queue_over_sql.spark.databases import location_of
from queue_over_sql.spark.reasons import in_short
from queue_over_sql.spark.workers.plan import REPORT_SCHEMA, Form, WorkerReport, WorkersPlan
from queue_over_sql.spark.workers.task import service_of, work_of
from queue_over_sql.values.backoff import RateLimit
from queue_over_sql.values.checks import check_choice, check_whole
from queue_over_sql.values.durations import Duration, to_microseconds, to_timedelta

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from queue_over_sql import Queue, QueueService


__all__ = ["FleetFailed", "FleetProgress", "FleetReport", "WorkerReport", "run_workers"]

_log = logging.getLogger(__name__)
_TICK: Final = 0.1
_MOST_LOOKS_FOR_LOST: Final = 50
_PROGRESS_SECONDS: Final = 1.0
# Spark kills the Python process of a cancelled task after two seconds.
_GRACE_SECONDS: Final = 3.0
# The default numbers of messages per claim, and per take.
_BATCHES: Final = {"message": 100, "batch": 100, "arrow": 500}
_TAKEN: Final = 10_000
# Spark's texts for a job that ended for an external reason; by error class if there is one.
_CANCELLED: Final = ("SPARK_JOB_CANCELLED", "OPERATION_CANCELED", "cancelled", "was shut down")
_LOST: Final = (
    *("exited unexpectedly", "ExecutorLostFailure", "Connection reset", "EOFException"),
    *("FetchFailed", "worker lost", "Python worker died", "WORKER_EXITED"),
)


class FleetFailed(QueueError):
    """Spark's job of workers was cancelled or failed; their messages were released."""


class StopAsked(Protocol):
    """An object such as ``threading.Event``."""

    def is_set(self) -> bool:
        """Whether to end."""
        ...


@dataclasses.dataclass(frozen=True)
class FleetProgress:
    """The progress of the workers.

    Attributes:
        left: unfinished messages: ready, claimed or delayed.
        ready, claimed, delayed: unfinished messages by status.
        seconds: seconds since the start.
    """

    left: int
    ready: int
    claimed: int
    delayed: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class FleetReport:
    """The work of all workers.

    Attributes:
        handled: deliveries that were handled successfully, without those of lost workers.
        failed: deliveries whose handler failed; the messages are retried or became dead letters.
        dead: messages that became dead letters, without those of lost workers.
        seconds: duration in seconds.
        restarts: how often Spark's job was restarted because workers were lost.
        workers: the report of each worker of the last job.
    """

    handled: int
    failed: int
    dead: int
    seconds: float
    restarts: int
    workers: tuple[WorkerReport, ...]


def run_workers(
    spark: SparkSession,
    queue: str,
    handler: Callable[..., Any],
    *,
    url: str | None = None,
    url_env: str | None = None,
    url_file: str | None = None,
    schema: str | None = None,
    table_prefix: str = "queue_",
    workers: int = 2,
    batch: int | None = None,
    until: Literal["empty"] | Duration | None = "empty",
    form: Form = "message",
    transactional: bool = False,
    concurrency: int = 1,
    lease_keepalive: bool = True,
    consumer_timeout: Duration = 30.0,
    poll_interval: tuple[float, float] = (0.01, 1.0),
    restarts: int = 3,
    retry_policies: Mapping[str, type[Any]] | None = None,
    progress: Callable[[FleetProgress], object] | None = None,
    stop: StopAsked | None = None,
) -> FleetReport:
    """Run your handler for the messages of a queue, on Spark's executors.

    Each worker is a normal consumer, with heartbeat, leases, retries and dead letters. With more
    workers than cores, the later ones start when the first ones end.

    Args:
        spark: the session; also one of Spark Connect.
        queue: name of an existing queue.
        handler: a plain function, pickled to the executors. By ``form`` it is called with a
            ``Message``, a list of them, or a ``pyarrow.RecordBatch``; when ``transactional`` also
            with an SQLAlchemy ``Connection``, whose commit is the ack. An exception fails all
            messages of the call. A handler of Arrow batches may also return, for each message, None
            or the reason of its failure.
        url: an SQLAlchemy URL.
        url_env: instead of ``url``, the environment variable that holds it, here and on the
            executors.
        url_file: instead of ``url``, the file that holds it.
        schema: database schema of the tables.
        table_prefix: prefix of the names of the queues' tables.
        workers: number of workers; each is a Spark task.
        batch: messages per claim; default: 100, for Arrow batches 500, for transactional Arrow
            batches 10,000.
        until: ``"empty"``: until no message is due, claimed or waiting for a retry, other than due
            ones that are paused or blocked; a duration: for that time; None: until ``stop`` is set.
        form: ``"message"``, ``"batch"`` or ``"arrow"``.
        transactional: see ``handler``. If the database can skip locked rows, Arrow batches are then
            taken instead of claimed, which is several times as fast; see ``docs/spark-workers.md``.
        concurrency: threads that handle messages in each worker; 1 for Arrow batches.
        lease_keepalive: whether to renew leases while the handler runs.
        consumer_timeout: a worker with no heartbeat for this long is considered dead.
        poll_interval: shortest and longest pause in seconds between two polls of an empty queue.
        restarts: how often to restart Spark's job after workers were lost.
        retry_policies: names and classes of your own retry policies, as for ``QueueService``;
            pickled to the executors.
        progress: called about once a second, in this thread.
        stop: an event; when it is set, the workers finish their current messages and end.

    Returns:
        The report of the workers.

    Raises:
        QueueNotFound, DatabaseUnavailable: before the first worker starts.
        FleetFailed: Spark's job was cancelled, or workers were lost more often than ``restarts``;
            the messages of the workers were released.
        KeyboardInterrupt: raised after the workers have finished their current messages.
        TypeError, ValueError: an argument has an invalid value.
    """
    check_choice("form", form, get_args(Form))
    check_whole("workers", workers)
    check_whole("restarts", restarts, 0)
    _check_handler(handler, form, concurrency)
    location = location_of(url, url_env, url_file, schema, table_prefix)
    plan = WorkersPlan(
        location=location,
        queue=queue,
        handler=handler,
        form=form,
        transactional=transactional,
        batch=check_whole("batch", batch or _usual_batch(form, transactional)),
        concurrency=concurrency,
        lease_keepalive=lease_keepalive,
        until_empty=until == "empty",
        ends_at=None,
        leader="",
        name=f"workers {queue} {uuid.uuid4().hex[:8]}",
        consumer_timeout=to_timedelta(consumer_timeout, "consumer_timeout").total_seconds(),
        poll_interval=poll_interval,
        retry_policies=dict(retry_policies or {}),
    )
    with contextlib.closing(_Coordinator(plan)) as coordinator:
        ending = dataclasses.replace(plan, ends_at=coordinator.instant(until))
        return _Workers(spark, coordinator, workers, progress, stop).run(ending, restarts)


class _Coordinator:
    """The driver's part in the database, with a service that is not a consumer."""

    def __init__(self, plan: WorkersPlan) -> None:
        self._plan = plan
        self._service = service_of(plan, "driver of workers")
        try:
            self.queue = self._service.queue(plan.queue)
            _check_form(self.queue, plan.form)
        except BaseException:
            self.close()
            raise

    def leader(self) -> QueueService:
        """A consumer that claims nothing; the workers run while it is registered."""
        leader = service_of(self._plan, f"{self._plan.name} driver")
        leader.start()
        return leader

    def instant(self, until: Literal["empty"] | Duration | None) -> int | None:
        """The end of a duration from now on, by the database's clock in microseconds."""
        if until is None or until == "empty":
            return None
        length = to_microseconds(until, "until")
        return inside.read_clock(self.queue) + length

    def progress(self, began: float) -> FleetProgress:
        """The present progress."""
        stats = self.queue.stats()
        left = stats.ready + stats.claimed + stats.delayed
        seconds = time.monotonic() - began
        return FleetProgress(left, stats.ready, stats.claimed, stats.delayed, seconds)

    def give_back_lost(self) -> bool:
        """Release at once the messages of workers that no Spark task runs any more.

        Returns whether there were any. If such a worker is still alive, its next heartbeat fails,
        and the fence stops it from settling the messages.
        """
        lost = [each for each in self._service.consumers() if each.name == self._plan.name]
        for found in lost:
            inside.forget_consumer(self._service, found.consumer_id)
        inside.restore(self.queue)
        return bool(lost)

    def close(self) -> None:
        """Disconnect."""
        self._service.stop()


class _Workers:
    """The driver's part of the workers."""

    def __init__(
        self,
        spark: SparkSession,
        coordinator: _Coordinator,
        workers: int,
        progress: Callable[[FleetProgress], object] | None,
        stop: StopAsked | None,
    ) -> None:
        self._spark = spark
        self._coordinator = coordinator
        self._workers = workers
        self._progress = progress
        self._stop = stop if stop is not None else threading.Event()
        self._stopped = False
        self._pace = RateLimit(_PROGRESS_SECONDS, ready=True)
        self._began = time.monotonic()

    def run(self, plan: WorkersPlan, restarts: int) -> FleetReport:
        """Run Spark's job until the work is done; restart it if workers were lost."""
        while True:
            try:
                reports = self._run_once(plan)
            except _JobEnded as failed:
                self._give_back()
                error = failed.reason
                if self._stopped or plan.losses == restarts or not _lost_workers(error):
                    msg = f"The workers on queue {plan.queue!r} ended early: {in_short(error)}"
                    raise FleetFailed(msg) from error
                _log.warning("Workers on queue %s were lost: %s", plan.queue, in_short(error))
                plan = dataclasses.replace(plan, losses=plan.losses + 1)
                continue
            # These ended because they could not see the driver, not because they were told to.
            if self._stopped or not any(report.ended == "told" for report in reports):
                return self._report(plan, reports)

    def _report(self, plan: WorkersPlan, reports: Sequence[WorkerReport]) -> FleetReport:
        return FleetReport(
            handled=sum(report.handled for report in reports),
            failed=sum(report.failed for report in reports),
            dead=sum(report.dead for report in reports),
            seconds=time.monotonic() - self._began,
            restarts=plan.losses,
            workers=tuple(reports),
        )

    def _run_once(self, plan: WorkersPlan) -> list[WorkerReport]:
        leader = self._coordinator.leader()
        try:
            job = _WorkersJob(
                self._spark,
                dataclasses.replace(plan, leader=str(leader.consumer_id)),
                self._workers,
            )
            job.start()
            try:
                self._wait(job, leader)
            except BaseException:
                self._notify(leader)
                _finish(job)
                self._give_back()
                raise
            return job.reports()
        finally:
            leader.stop()

    def _wait(self, job: _WorkersJob, leader: QueueService) -> None:
        while job.running(_TICK):
            if self._stopped:
                continue
            if self._stop.is_set():
                self._notify(leader)
            elif self._progress is not None and self._pace.due():
                with self._pace.running():
                    state = self._coordinator.progress(self._began)
                self._progress(state)

    def _notify(self, leader: QueueService) -> None:
        self._stopped = True
        leader.stop()

    def _give_back(self) -> None:
        try:
            # Spark may kill a task at the moment in which it becomes a worker. If it survives, it
            # registers again after it was removed; the reaper handles that.
            for _ in range(_MOST_LOOKS_FOR_LOST):
                if not self._coordinator.give_back_lost():
                    break
                time.sleep(_TICK)
        except QueueError as error:
            _log.warning(
                "The messages of lost workers could not be released; the reaper will "
                "release them: %s",
                error,
            )


class _JobEnded(Exception):
    """The job ended before its workers did, because of Spark's error ``reason``."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _WorkersJob:
    """A Spark job whose tasks are workers."""

    def __init__(self, spark: SparkSession, plan: WorkersPlan, workers: int) -> None:
        self._spark = spark
        self._plan = plan
        self._workers = workers
        self._tag = f"queue-over-sql-{uuid.uuid4()}"
        self._reports: list[WorkerReport] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=self._tag, daemon=True)

    def start(self) -> None:
        """Start the job."""
        self._thread.start()

    def running(self, seconds: float) -> bool:
        """Wait for its end, at most ``seconds``; returns whether it still runs."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def cancel(self) -> None:
        """Cancel the job, whatever its workers are doing."""
        self._spark.interruptTag(self._tag)

    def reports(self) -> list[WorkerReport]:
        """The reports of the workers; raises ``_JobEnded`` if the job failed or was cancelled."""
        if self._error is not None:
            raise _JobEnded(self._error)
        return self._reports

    def _run(self) -> None:
        try:
            # Tags belong to the thread, and also work with Spark Connect.
            self._spark.addTag(self._tag)
            rows = (
                self._spark.range(0, self._workers, 1, self._workers)
                .mapInArrow(work_of(self._plan), REPORT_SCHEMA)
                .collect()
            )
            self._reports = [WorkerReport(**row.asDict()) for row in rows]
        except BaseException as error:  # noqa: BLE001 - raised where it is asked for
            self._error = error


def _lost_workers(error: BaseException) -> bool:
    text = f"{error}"
    if any(sign in text for sign in _CANCELLED):
        return False
    return any(sign in text for sign in _LOST)


def _finish(job: _WorkersJob) -> None:
    try:
        while job.running(_TICK):
            pass
    except BaseException:
        job.cancel()
        job.running(_GRACE_SECONDS)
        raise


def _check_handler(handler: Any, form: Form, concurrency: int) -> None:
    if not callable(handler):
        msg = f"handler must be a function, not {type(handler).__name__}"
        raise TypeError(msg)
    check_kind(handler, "handler")
    if check_whole("concurrency", concurrency) > 1 and form == "arrow":
        msg = "concurrency= is not possible with form='arrow': use more workers"
        raise ValueError(msg)


def _usual_batch(form: Form, transactional: bool) -> int:
    return _TAKEN if form == "arrow" and transactional else _BATCHES[form]


def _check_form(queue: Queue, form: Form) -> None:
    if form == "arrow":
        msg = (
            f"queue {queue.name!r} is an adopted table, which does not support Arrow batches: use "
            "form='message' or form='batch'"
        )
        inside.tables(queue).expect_payloads(ValueError(msg))
