"""Taking: a batch is removed, handled and committed in one transaction, without acks.

It is the fastest way, because a message is written once instead of twice. If a worker dies, the
database rolls back and no message is lost. But attempts cannot be counted. So a failing batch is
split until the failing message is alone, and that one is claimed as usual.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DBAPIError

from queue_over_sql import inside
from queue_over_sql.errors import DatabaseUnavailable, QueueError
from queue_over_sql.inside.workers import Handler, LeaseKeeper, handler_run
from queue_over_sql.spark.workers.handler_calls import Counters, reasons_of
from queue_over_sql.values.backoff import Backoff

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import Connection

    from queue_over_sql import Queue, QueueService
    from queue_over_sql.spark.workers.plan import WorkersPlan


_log = logging.getLogger(__name__)
_CUT: Final = 4
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0


class _HandlerFailed(Exception):
    """The handler raised; nothing was taken."""


class _SomeFailed(Exception):
    """The handler returned failed messages; nothing was taken."""


class Taking:
    """A worker that takes batches; see the module."""

    def __init__(
        self,
        service: QueueService,
        queue: Queue,
        plan: WorkersPlan,
        counters: Counters,
        counted: Callable[..., None],
    ) -> None:
        self._service = service
        self._queue = queue
        self._plan = plan
        self._counters = counters
        self._counted = counted
        self._keeper = LeaseKeeper()
        self._over = threading.Event()

    def run(self) -> None:
        """Take until told to stop."""
        size, backoff = self._plan.batch, Backoff(*self._plan.poll_interval, factor=1.5)
        try:
            while not self._over.is_set():
                size, found = self._turn(size)
                if found:
                    backoff.reset()
                    continue
                self._over.wait(backoff.pause())
        finally:
            self._keeper.stop()

    def stop(self) -> None:
        """End after the current batch."""
        self._over.set()

    def _turn(self, size: int) -> tuple[int, bool]:
        try:
            found = self._take(size)
        except _HandlerFailed as error:
            inside.wake_consumers(self._queue)
            if size > 1:
                return max(1, size // _CUT), True
            _log.info("Queue %s: %s", self._queue.name, error.__cause__)
            return self._count(1), True
        except _SomeFailed:
            inside.wake_consumers(self._queue)
            return self._count(size), True
        except QueueError as error:
            _log.warning("Queue %s: %s", self._queue.name, error)
            self._over.wait(Backoff(_FIRST_PAUSE, _LAST_PAUSE).pause())
            return size, False
        return min(self._plan.batch, size * 2), found > 0

    def _take(self, size: int) -> int:
        from queue_over_sql.inside.columns import take

        try:
            with inside.transaction(self._service) as connection:
                batch = take(self._queue, size, connection)
                if batch is None:
                    return 0
                self._call(batch, connection)
        except DBAPIError as error:
            # Whether the commit succeeded or not, each message is either done or still there.
            if inside.is_disconnect(self._service, error):
                raise DatabaseUnavailable(str(error.orig)) from error
            raise _HandlerFailed from error
        self._counters.count(batch.num_rows, 0)
        return int(batch.num_rows)

    def _call(self, batch: pa.RecordBatch, connection: Connection) -> None:
        with self._counters.calling():
            try:
                with inside.handlers_connection(self._service, connection):
                    context = contextvars.copy_context()
                    answer = context.run(self._plan.handler, batch, connection)
                reasons = reasons_of(answer, batch.num_rows)
            except BaseException as error:
                raise _HandlerFailed from error
        if reasons:
            raise _SomeFailed

    def _count(self, size: int) -> int:
        plan, queue = self._plan, self._queue
        handler = Handler(queue.name, self._counted, True, plan.lease_keepalive, size)  # noqa: FBT003
        run = handler_run(handler, queue, insist=self._insist, draining=self._over.is_set)
        try:
            with contextlib.closing(run):
                messages = queue.consume(size)
                keeping = plan.lease_keepalive and not self._over.is_set()
                with self._keeper.keeping(queue, messages if keeping else ()):
                    if self._over.is_set():
                        queue.release(messages)
                    elif messages:
                        run.handle(messages)
        except QueueError as error:
            _log.warning("Queue %s: %s", queue.name, error)
        return min(plan.batch, size * 2)

    def _insist(self, do: Callable[[], Any]) -> None:
        """Retry while the database is unavailable, as long as the worker runs."""
        backoff = Backoff(_FIRST_PAUSE, _LAST_PAUSE)
        while True:
            try:
                do()
            except DatabaseUnavailable:
                if self._over.wait(backoff.pause()):
                    raise
            else:
                return
