"""One worker inside a Spark task: an ordinary consumer that knows when to end."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BigInteger, literal

from queue_over_sql import QueueService, inside
from queue_over_sql.errors import QueueError
from queue_over_sql.spark.databases import url_of
from queue_over_sql.spark.workers.handler_calls import Counters, calling
from queue_over_sql.spark.workers.plan import WorkerReport
from queue_over_sql.spark.workers.take import Taking
from queue_over_sql.values.backoff import RateLimit
from queue_over_sql.values.durations import NEVER

if TYPE_CHECKING:
    import pyarrow as pa

    from queue_over_sql import Queue, Worker
    from queue_over_sql.spark.workers.plan import Ending, WorkersPlan


_log = logging.getLogger(__name__)
_TICK: Final = 0.2
_LEADER_SECONDS: Final = 1.0
# The driver's service has a reaper; those of many workers would only conflict.
_REAPER_SECONDS: Final = 60.0
# The factor by which claims shrink after each loss, so that fewer messages are affected by the
# next.
_CAUTION: Final = 10


def work_of(plan: WorkersPlan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a Spark task: it gets the worker's number and yields the worker's report."""

    def work(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        careful = _careful(plan, context.attemptNumber() if context is not None else 0)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                report = dataclasses.asdict(work_as(number, careful))
                yield pa.RecordBatch.from_pylist([report])

    return work


def work_as(number: int, plan: WorkersPlan) -> WorkerReport:
    """Run a worker until there is a reason to end."""
    began, counters = time.monotonic(), Counters()
    with service_of(plan, plan.name, reaper_interval=_REAPER_SECONDS) as service:
        queue = service.queue(plan.queue)
        work = _work(service, queue, plan, counters)
        ended = EndingWatch(service, queue, plan, counters).over(work)
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


def _work(
    service: QueueService, queue: Queue, plan: WorkersPlan, counters: Counters
) -> Worker | Taking:
    function = calling(plan, queue, counters)
    # A worker that dies while it takes leaves no trace, so after a loss attempts are counted.
    takes = plan.form == "arrow" and plan.transactional and not plan.losses
    if takes and inside.engine(service).skip_locked:
        return Taking(service, queue, plan, counters, function)
    worker = service.worker(
        concurrency=plan.concurrency, prefetch=plan.batch, poll_interval=plan.poll_interval
    )
    worker.handle(
        queue.name,
        transactional=plan.transactional,
        lease_keepalive=plan.lease_keepalive,
        batch=None if plan.form == "message" else plan.batch,
    )(function)
    return worker


def service_of(plan: WorkersPlan, name: str, **settings: Any) -> QueueService:
    """A service on the workers' database; once started it is a consumer with this name."""
    return QueueService(
        url_of(plan.location),
        schema=plan.location.schema,
        table_prefix=plan.location.table_prefix,
        consumer_name=name,
        consumer_timeout=plan.consumer_timeout,
        retry_policies=plan.retry_policies,
        **settings,
    )


def _careful(plan: WorkersPlan, attempt: int) -> WorkersPlan:
    losses = plan.losses + attempt
    return dataclasses.replace(plan, losses=losses, batch=max(1, plan.batch // _CAUTION**losses))


# -- the end of a worker: a check in the background, now and then


class EndingWatch:
    """Stops a worker if no messages are left, its time is over, or its driver is gone."""

    def __init__(
        self, service: QueueService, queue: Queue, plan: WorkersPlan, counters: Counters
    ) -> None:
        self._service = service
        self._queue = queue
        self._plan = plan
        self._counters = counters
        self._looking = RateLimit(_TICK, ready=True)
        self._leader_at = float("-inf")
        self._calls = -1
        self._ended = threading.Event()
        self._reason: Ending = "told"

    def over(self, work: Worker | Taking) -> Ending:
        """Run the work until there is a reason to end; returns the reason."""
        deadline = self._deadline()
        watching = threading.Thread(
            target=self._watch, args=(work, deadline), name="queue-over-sql-watch", daemon=True
        )
        watching.start()
        try:
            work.run()
        finally:
            self._ended.set()
            watching.join()
        return self._reason

    def _watch(self, work: Worker | Taking, deadline: float | None) -> None:
        while not self._ended.wait(_TICK):
            try:
                reason = self._found(deadline)
            except QueueError as error:
                # The work itself also waits for the database.
                _log.info("Workers %s: %s", self._plan.name, error)
                continue
            if reason is not None:
                self._reason = reason
                work.stop()
                return

    def _found(self, deadline: float | None) -> Ending | None:
        if deadline is not None and time.monotonic() >= deadline:
            return "time"
        if time.monotonic() - self._leader_at >= _LEADER_SECONDS:
            if not self._led():
                return "told"
            self._leader_at = time.monotonic()
        return "empty" if self._plan.until_empty and self._idle() and self._nothing_left() else None

    def _deadline(self) -> float | None:
        """On this machine's clock, which only needs to run at the same speed as the database's."""
        if self._plan.ends_at is None:
            return None
        now = inside.read_clock(self._queue)
        return time.monotonic() + (self._plan.ends_at - now) / 1_000_000

    def _led(self) -> bool:
        return inside.is_alive(self._service, self._plan.leader)

    def _idle(self) -> bool:
        calls, self._calls = self._calls, self._counters.calls
        return calls == self._counters.calls and not self._counters.busy and self._looking.due()

    def _nothing_left(self) -> bool:
        """Whether no message is due, in work anywhere, or waiting for a retry.

        Messages of a streaming query do not count, because its claims never end. Nor do those that
        nobody gets, such as the rest of a blocked group.
        """
        queue, columns = self._queue, self._queue.table.c
        ends = columns.lease_expires_at < literal(NEVER, BigInteger())
        with self._looking.running():
            return not (
                queue.messages(status="ready", where=~inside.stays(queue)).first()
                or queue.messages(status="claimed", where=ends).first()
                or queue.messages(status="delayed", where=columns.attempt_count > 0).first()
            )
