"""Keeping leases: renews those of messages that a handler works on for long."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING

from queue_over_sql.database.runtime import THREADS, Running, Runtime
from queue_over_sql.errors import ClaimLost, QueueError
from queue_over_sql.message import claimed_lease_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from queue_over_sql.message import Message
    from queue_over_sql.queue import Queue


_log = logging.getLogger(__name__)

# Renewed at a third of the lease, so that two renewals may fail.
_SHARE = 3
_LONGEST_SLEEP = 60.0


@dataclasses.dataclass(eq=False)
class _Batch:
    queue: Queue
    messages: list[Message]
    interval: float
    due_at: float
    renewing: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class LeaseKeeper:
    """Renews, beside the handlers, the leases of all messages which are being worked on."""

    def __init__(self, runtime: Runtime = THREADS) -> None:
        self._runtime = runtime
        self._batches: set[_Batch] = set()
        self._changed = runtime.condition()
        self._running: Running | None = None
        self._stopping = False
        # When the thread looks again by itself.
        self._wakes_at = float("inf")

    @contextlib.contextmanager
    def keeping(self, queue: Queue, messages: Sequence[Message]) -> Iterator[None]:
        """Renew the leases of ``messages`` for as long as the block runs."""
        shortest = min(claimed_lease_us(message) or 0 for message in messages)
        interval = shortest / 1_000_000 / _SHARE
        batch = _Batch(queue, list(messages), interval, time.monotonic() + interval)
        with self._changed:
            self._batches.add(batch)
            if self._running is None:
                self._running = self._runtime.start("queue-over-sql-leases", self._loop)
            # Else each message would wake that thread for nothing.
            if batch.due_at < self._wakes_at:
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._batches.discard(batch)

    def stop(self) -> None:
        """Renew no more."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _loop(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                next_at = min((b.due_at for b in self._batches), default=now + _LONGEST_SLEEP)
                if not self._stopping and next_at > now:
                    self._wakes_at = next_at
                    self._changed.wait(next_at - now)
                if self._stopping:
                    return
                due = [batch for batch in self._batches if batch.due_at <= time.monotonic()]
            for batch in due:
                batch.due_at = time.monotonic() + batch.interval
                # Each by itself: a row that somebody has locked must not hold up the others.
                if batch.renewing.acquire(blocking=False):
                    self._runtime.start("queue-over-sql-lease", self._renew, batch)

    def _renew(self, batch: _Batch) -> None:
        open_messages = [message for message in batch.messages if not message.settled]
        try:
            if open_messages:
                batch.queue.extend(open_messages)
        except ClaimLost as error:
            # Either it was settled this moment, or it is lost and its handler's ack will say so.
            lost = set(map(id, error.messages))
            batch.messages = [m for m in batch.messages if id(m) not in lost]
        except QueueError as error:
            _log.warning("A lease of queue %s could not be renewed: %s", batch.queue.name, error)
        finally:
            batch.renewing.release()
