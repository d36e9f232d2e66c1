"""When a worker of a fleet ends: it looks once in a while, beside the work."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from sqlalchemy import BigInteger, literal

from queue_over_sql import store
from queue_over_sql.backoff import RateLimit
from queue_over_sql.durations import NEVER
from queue_over_sql.errors import QueueError
from queue_over_sql.queue import core_of
from queue_over_sql.service import parts_of
from queue_over_sql.store import consumers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from queue_over_sql.queue import Queue
    from queue_over_sql.service import QueueService
    from queue_over_sql.spark.workers.plan import Ending, WorkersPlan


_log = logging.getLogger(__name__)
_TICK: Final = 0.2
_LEADER_SECONDS: Final = 1.0


class Work(Protocol):
    """What a worker does until it is stopped."""

    def run(self) -> None:
        """Work; returns soon after ``stop``."""
        ...

    def stop(self) -> None:
        """Let the handler that runs finish, and give back what was only claimed."""
        ...


class Counters:
    """Counts of one worker; its threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.handled = 0
        self.failed = 0
        self.dead = 0
        self.calls = 0
        self.busy = 0

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """A call of the handler runs."""
        with self._lock:
            self.calls += 1
            self.busy += 1
        try:
            yield
        finally:
            with self._lock:
                self.busy -= 1

    def count(self, handled: int, failed: int, dead: int = 0) -> None:
        """Deliveries that met their fate; those that are dead letters now are among the failed."""
        with self._lock:
            self.handled += handled
            self.failed += failed
            self.dead += dead


class Watch:
    """Stops a worker when nothing is left, its time is over, or its driver is gone."""

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

    def over(self, work: Work) -> Ending:
        """Do the work until there is a reason to end; returns the reason."""
        deadline = self._deadline()
        watching = threading.Thread(
            target=self._watch, args=(work, deadline), name="queue-over-sql-fleet", daemon=True
        )
        watching.start()
        try:
            work.run()
        finally:
            self._ended.set()
            watching.join()
        return self._reason

    def _watch(self, work: Work, deadline: float | None) -> None:
        while not self._ended.wait(_TICK):
            try:
                reason = self._found(deadline)
            except QueueError as error:
                # The work waits for the database, too.
                _log.info("Fleet %s: %s", self._plan.name, error)
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
        """On this machine's clock, which needs only go as fast as the database's."""
        if self._plan.ends_at is None:
            return None
        sql = core_of(self._queue).context.sql
        now = parts_of(self._service).connections.run(lambda c: store.server_now(c, sql))
        return time.monotonic() + (self._plan.ends_at - now) / 1_000_000

    def _led(self) -> bool:
        connections, system = (
            parts_of(self._service).connections,
            core_of(self._queue).context.tables.system,
        )
        return connections.run(
            lambda c: consumers.alive(c, system, connections.dialect, self._plan.leader)
        )

    def _idle(self) -> bool:
        calls, self._calls = self._calls, self._counters.calls
        return calls == self._counters.calls and not self._counters.busy and self._looking.due()

    def _nothing_left(self) -> bool:
        """Whether no message is due, being worked on by whomever, or waiting to be tried again.

        What a streaming query holds is its own affair: its claims have no end.
        """
        queue, columns = self._queue, self._queue.table.c
        ends = columns.lease_expires_at < literal(NEVER, BigInteger())
        with self._looking.running():
            return not (
                queue.messages(status="ready").first()
                or queue.messages(status="claimed", where=ends).first()
                or queue.messages(status="delayed", where=columns.attempt_count > 0).first()
            )
