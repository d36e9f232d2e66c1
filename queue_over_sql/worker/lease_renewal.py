"""Keeping leases: renews those of messages that a handler works on for long."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from queue_over_sql.database.runtime import THREADS, Running, Runtime
from queue_over_sql.errors import ClaimLost, QueueError
from queue_over_sql.message import claimed_lease_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from queue_over_sql.message import Message
    from queue_over_sql.queue import Queue


_log = logging.getLogger(__name__)

# Renewed at a third of the lease, so that two renewals may fail.
_SHARE = 3
_LONGEST_SLEEP = 60.0


@dataclasses.dataclass(eq=False)
class _Holding:
    queue: Callable[[], Queue]
    messages: Mapping[int, Message]
    due_at: float = math.inf
    renewing: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class LeaseKeeper:
    """Renews, beside the handlers, the leases of all messages that a worker has in hand."""

    def __init__(self, runtime: Runtime = THREADS) -> None:
        self._runtime = runtime
        self._holdings: list[_Holding] = []
        self._changed = runtime.condition()
        self._running: Running | None = None
        self._stopping = False
        # When the thread looks again by itself.
        self._wakes_at = math.inf

    def holding(
        self, queue: Callable[[], Queue], messages: Mapping[int, Message]
    ) -> Callable[[Sequence[Message]], None]:
        """Renew the leases of whatever is in ``messages``.

        Args:
            queue: returns the queue that they are of.
            messages: those that are in hand; it changes meanwhile.

        Returns:
            To be called with each claim.
        """
        holding = _Holding(queue, messages)
        with self._changed:
            self._holdings.append(holding)

        def claimed(found: Sequence[Message]) -> None:
            due_at = time.monotonic() + _interval(found)
            if due_at >= holding.due_at:
                return
            with self._changed:
                holding.due_at = due_at
                if self._running is None:
                    self._running = self._runtime.start("queue-over-sql-leases", self._loop)
                if due_at < self._wakes_at:
                    self._changed.notify_all()

        return claimed

    @contextlib.contextmanager
    def keeping(self, queue: Queue, messages: Sequence[Message]) -> Iterator[None]:
        """Renew the leases of ``messages`` for as long as the block runs."""
        held = {id(message): message for message in messages}
        claimed = self.holding(lambda: queue, held)
        if messages:
            claimed(messages)
        try:
            yield
        finally:
            held.clear()
            with self._changed:
                self._holdings = [each for each in self._holdings if each.messages is not held]

    def stop(self) -> None:
        """Renew no more."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _loop(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                next_at = min(now + _LONGEST_SLEEP, *(h.due_at for h in self._holdings), math.inf)
                if not self._stopping and next_at > now:
                    self._wakes_at = next_at
                    self._changed.wait(next_at - now)
                if self._stopping:
                    return
                due = [each for each in self._holdings if each.due_at <= time.monotonic()]
            for holding in due:
                held = list(holding.messages.values())
                holding.due_at = time.monotonic() + _interval(held) if held else math.inf
                # Each by itself: a row that somebody has locked must not hold up the others.
                if held and holding.renewing.acquire(blocking=False):
                    self._runtime.start("queue-over-sql-lease", self._renew, holding, held)

    def _renew(self, holding: _Holding, held: Sequence[Message]) -> None:
        try:
            queue = holding.queue()
            open_messages = [message for message in held if not message.settled]
            if open_messages:
                queue.extend(open_messages)
        except ClaimLost:
            # Either it was settled this moment, or it is lost and its handler's ack will say so.
            pass
        except QueueError as error:
            _log.warning("A lease could not be renewed: %s", error)
        finally:
            holding.renewing.release()


def _interval(messages: Iterable[Message]) -> float:
    shortest = min(claimed_lease_us(message) or 0 for message in messages)
    return shortest / 1_000_000 / _SHARE
