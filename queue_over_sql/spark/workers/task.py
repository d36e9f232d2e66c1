"""One worker of a fleet, inside a task of Spark: an ordinary consumer that knows when to end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.service import QueueService, parts_of
from queue_over_sql.spark.databases import url_of
from queue_over_sql.spark.workers.ending import Counters, Watch, Work
from queue_over_sql.spark.workers.handler_calls import calling
from queue_over_sql.spark.workers.plan import REPORT_SCHEMA, WorkerReport
from queue_over_sql.spark.workers.take import Taking

if TYPE_CHECKING:
    import pyarrow as pa

    from queue_over_sql.queue import Queue
    from queue_over_sql.spark.workers.plan import WorkersPlan


# The driver's service has a reaper; those of many workers would only be in each other's way.
_REAPER_SECONDS: Final = 60.0
# How much less is claimed at once after each loss, so that few share the blame for the next.
_CAUTION: Final = 10


def work_of(plan: WorkersPlan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task of Spark runs: it gets the worker's number and yields the worker's report."""

    def work(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        careful = _careful(plan, context.attemptNumber() if context is not None else 0)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                report = dataclasses.asdict(work_as(number, careful))
                yield pa.RecordBatch.from_pylist([report], schema=_report_schema())

    return work


def _report_schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"int": pa.int32(), "long": pa.int64(), "double": pa.float64(), "string": pa.string()}
    pairs = [column.split() for column in REPORT_SCHEMA.split(", ")]
    return pa.schema([(name, kinds[kind]) for name, kind in pairs])


def work_as(number: int, plan: WorkersPlan) -> WorkerReport:
    """Be a worker until there is a reason to end.

    Raises:
        QueueError: the database cannot be reached at the start, or the queue is not there.
    """
    began, counters = time.monotonic(), Counters()
    with _consumer(plan) as service:
        queue = service.queue(plan.queue)
        work = _work(service, queue, plan, counters)
        ended = Watch(service, queue, plan, counters).over(work)
    return WorkerReport(
        worker=number,
        host=socket.gethostname(),
        pid=os.getpid(),
        handled=counters.handled,
        failed=counters.failed,
        dead=counters.dead,
        calls=counters.calls,
        seconds=time.monotonic() - began,
        ended=ended,
    )


class _Working:
    """The run-loop of every worker."""

    def __init__(
        self, service: QueueService, queue: Queue, plan: WorkersPlan, function: Callable[..., Any]
    ) -> None:
        self._worker = service.worker(
            concurrency=plan.concurrency, batch=plan.batch, poll_interval=plan.poll_interval
        )
        self._worker.handle(
            queue.name,
            transactional=plan.transactional,
            lease_keepalive=plan.lease_keepalive,
            batch=None if plan.form == "message" else plan.batch,
        )(function)

    def run(self) -> None:
        self._worker.run()

    def stop(self) -> None:
        self._worker.stop()


def _work(service: QueueService, queue: Queue, plan: WorkersPlan, counters: Counters) -> Work:
    function = calling(plan, queue, counters)
    # Who was lost while it took messages left no trace on them: from then on attempts are counted.
    takes = plan.form == "arrow" and plan.transactional and not plan.losses
    if takes and parts_of(service).connections.dialect.skip_locked:
        return Taking(service, queue, plan, counters, function)
    return _Working(service, queue, plan, function)


@contextlib.contextmanager
def _consumer(plan: WorkersPlan) -> Iterator[QueueService]:
    service = QueueService(
        url_of(plan.location),
        schema=plan.location.schema,
        table_prefix=plan.location.table_prefix,
        consumer_name=plan.name,
        consumer_timeout=plan.consumer_timeout,
        reaper_interval=_REAPER_SECONDS,
        retry_policies=plan.retry_policies,
    )
    with service:
        yield service


def _careful(plan: WorkersPlan, attempt: int) -> WorkersPlan:
    losses = plan.losses + attempt
    return dataclasses.replace(plan, losses=losses, batch=max(1, plan.batch // _CAUTION**losses))
