"""Supply: claims messages for a handler ahead of its threads, and acks them behind.

One thread beside the handlers talks to the database for all of them. The more often a handler
ends, the more messages it claims and acks at once; a slow handler gets them one by one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeVar

from queue_over_sql.backoff import Backoff
from queue_over_sql.errors import (
    ClaimLost,
    DatabaseUnavailable,
    QueueError,
    QueueSchemaMismatch,
    ServiceClosed,
)
from queue_over_sql.message import payload_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queue_over_sql.catalog import ServiceParts
    from queue_over_sql.message import Message
    from queue_over_sql.queue import Queue
    from queue_over_sql.worker.handlers import Handler
    from queue_over_sql.worker.lease_renewal import LeaseKeeper


T = TypeVar("T")
_log = logging.getLogger(__name__)

HORIZON_SECONDS = 0.05
"""A message that waited in hand for so long without being begun is given back."""
# So much work is claimed ahead, as handlers have taken lately; the rest of the horizon is reserve.
_AHEAD_SECONDS = HORIZON_SECONDS / 2
MOST_AHEAD = 1000
"""No more messages than this are claimed ahead, nor more than 8 MiB of payload."""
_MOST_BYTES = 8 * 2**20
ACK_SECONDS = 0.005
"""A finished message waits at most so long for others to be acked with it."""
# How much the last call weighs in the mean time of a call.
_WEIGHT = 0.1
_SHORTEST = 1e-6
FIRST_RECONNECT, LAST_RECONNECT = 0.1, 5.0


class Threads(Protocol):
    """The threads of a worker, as its supplies see them."""

    @property
    def concurrency(self) -> int:
        """How many there are."""

    @property
    def draining(self) -> bool:
        """Whether they begin no more messages."""

    def insist(self, act: Callable[[], None]) -> None:
        """Do it, however often the database goes away."""

    def ask(self, supply: Supply) -> None:
        """Set how many messages a supply shall claim, so that no two claim for one thread."""

    def filled(self, supply: Supply, count: int) -> None:
        """A supply has work for so many threads; others may claim for those that are left."""

    def drain(self) -> None:
        """Begin no more messages."""


class Supply:
    """The messages of one handler that its worker has in hand.

    Args:
        threads: that handle the messages.
        handler: whose messages.
        parts: of the service.
        keeper: renews the leases of what is in hand.
        prefetch: messages for each thread, with the one that it works on; None to go by how long
            the handler takes.
        each: ack each message before its thread begins another.
        bounds: shortest and longest pause in seconds between two looks at an empty queue.
    """

    def __init__(
        self,
        threads: Threads,
        handler: Handler,
        parts: ServiceParts,
        keeper: LeaseKeeper,
        *,
        prefetch: int | None,
        each: bool,
        bounds: tuple[float, float],
    ) -> None:
        self.handler = handler
        self.in_hand: dict[int, Message] = {}
        """By identity: what is claimed and not settled."""
        self.asked = 0
        """How many messages it is claiming."""
        self.asked_at = 0.0
        """When it claimed last."""
        self._size = handler.batch or 1
        self._threads = threads
        self._parts = parts
        self._hold: Callable[[Sequence[Message]], object] = len
        if handler.lease_keepalive:
            self._hold = keeper.holding(lambda: self.queue, self.in_hand)
        self._prefetch = prefetch
        self._each = each
        self._bounds = bounds
        # Claimed and not begun, with the moment of the claim.
        self._ready: deque[tuple[Message, float]] = deque()
        self._finished: list[Message] = []
        self._finished_at = math.inf
        # How long a call takes, in seconds.
        self._mean = math.inf
        self._most_ahead = 0
        self._last_priority = 0
        # The count of arrivals before a look that found nothing, and when to look again.
        self._seen: int | None = None
        self._pause, self._look_at = bounds[0], 0.0
        self._idle = self._stirred = self._ended = self._over = False
        self._changed = parts.connections.runtime.condition()

    @property
    def queue(self) -> Queue:
        """The handler's queue, opened anew where it was replaced."""
        return self._parts.queue(self.handler.queue)

    @property
    def ready(self) -> int:
        """How many messages are claimed and not begun."""
        return len(self._ready)

    @property
    def reserved(self) -> int:
        """For how many threads there is work at hand, or asked for."""
        return math.ceil((len(self._ready) + self.asked) / self._size)

    # -- for the threads

    def take(self) -> list[Message]:
        """What one call of the handler gets; empty where there is nothing."""
        taken = [message for message, _ in _drained(self._ready, self._size)]
        if taken and self._seen is None and not self._stirred and self._is_low():
            self.stir()
        return taken

    def ended(self, taken: Sequence[Message], finished: Sequence[Message], took: float) -> None:
        """Note what became of a call.

        Args:
            taken: what the handler got.
            finished: those of them that have to be acked.
            took: seconds.
        """
        self._mean = took if self._mean == math.inf else self._mean + (took - self._mean) * _WEIGHT
        if len(finished) < len(taken):
            open_ones = set(map(id, finished))
            for message in taken:
                if id(message) not in open_ones:
                    self.in_hand.pop(id(message), None)
        if not finished:
            return
        with self._changed:
            first = not self._finished
            self._finished += finished
            if first:
                self._finished_at = time.monotonic()
        if first or self._each:
            self.stir()

    def await_acks(self, finished: Sequence[Message]) -> None:
        """Wait until these are acked, or lost."""
        with self._changed:
            while not self._over and self.in_hand.keys() & set(map(id, finished)):
                self._changed.wait()

    def stir(self) -> None:
        """Look at what there is to do."""
        self._stirred = True
        with self._changed:
            self._changed.notify_all()
        if self._idle:
            self._parts.arrivals.stir()

    def unfinished(self) -> list[Message]:
        """What is in hand, and was not handled to its end."""
        finished = set(map(id, self._finished))
        held = list(self.in_hand.items())
        return [message for key, message in held if key not in finished and not message.settled]

    def end(self) -> None:
        """Ack what is finished, and end ``run()``."""
        self._ended = True
        self.stir()

    # -- by itself

    def run(self) -> None:
        """Claim, ack, and give back, until the end."""
        try:
            self._run()
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _run(self) -> None:
        while not self._ended or self._finished or self._ready:
            try:
                self._step()
            except ServiceClosed:
                self._threads.drain()
                return
            except QueueSchemaMismatch as error:
                _log.warning("Queue %s is opened anew: %s", self.handler.queue, error)
                self._parts.catalog.forget(self.handler.queue)
            except QueueError as error:
                _log.warning("Queue %s: %s", self.handler.queue, error)
                self._rest()
            except Exception:  # noqa: BLE001 - whatever it is
                # Without this thread the worker would look well and do nothing.
                _log.exception(
                    "Queue %s: the worker goes on after an unexpected error.", self.handler.queue
                )
                self._rest()

    def _step(self) -> None:
        self._stirred = False
        draining, now = self._threads.draining, time.monotonic()
        if self._ready and (draining or now > self._stale_at()):
            self._give_back(draining=draining)
        if not draining:
            self._threads.ask(self)
        ripe = self.asked or draining or self._each or now >= self._finished_at + ACK_SECONDS
        if self.asked or (ripe and self._finished):
            self._exchange()
        elif not self._ended:
            self._wait(now)

    def wanted(self, free: int) -> int:
        """How many messages to claim.

        Args:
            free: threads that wait for a message and that no other supply has one for.
        """
        if not self.looks():
            return 0
        ahead, ready = self._ahead(), len(self._ready)
        wanted = free * self._size + ahead - ready
        return wanted if free * self._size > ready or self._is_low() else 0

    def looks(self) -> bool:
        """Whether the queue may have messages, as far as is known."""
        if self._seen is None:
            return True
        return self._seen != self._parts.arrivals.count or time.monotonic() >= self._look_at

    def _ahead(self) -> int:
        threads = self._threads.concurrency
        if self._prefetch is not None:
            return max(0, self._prefetch - self._size) * threads
        if self._mean >= HORIZON_SECONDS:
            return 0
        calls = int(_AHEAD_SECONDS * threads / max(self._mean, _SHORTEST))
        return min(calls * self._size, self._most_ahead)

    def _is_low(self) -> bool:
        return len(self._ready) * 2 < self._ahead()

    def _stale_at(self) -> float:
        if self._prefetch is not None:
            return math.inf
        try:
            return self._ready[0][1] + HORIZON_SECONDS
        except IndexError:
            return math.inf

    def _exchange(self) -> None:
        finished = self._take_finished()
        asked, seen = self.asked, self._parts.arrivals.count
        found: list[Message] = []
        try:
            found = self._exchanged(self.queue, finished, asked)
            self.in_hand.update((id(message), message) for message in found)
        finally:
            for message in finished:
                self.in_hand.pop(id(message), None)
            if self._each:
                with self._changed:
                    self._changed.notify_all()
            now = time.monotonic()
            self._ready.extend((message, now) for message in found)
            self.asked = 0
        if asked:
            self._note_look(found, seen)
        if found:
            self._hold(found)
            self._sort(found)
        if asked:
            self._threads.filled(self, math.ceil(len(found) / self._size))

    def _note_look(self, found: Sequence[Message], seen: int) -> None:
        if not found:
            # Jitter keeps those who met once from meeting again in step.
            self._look_at = time.monotonic() + self._pause * random.uniform(0.75, 1.25)  # noqa: S311
            self._pause = min(self._bounds[1], self._pause * 1.5)
            self._seen = seen
            return
        self._seen, self._pause = None, self._bounds[0]
        most = max(2 * self._most_ahead, self._threads.concurrency * self._size)
        size = max(1, sum(map(payload_size, found)))
        self._most_ahead = min(most, MOST_AHEAD, _MOST_BYTES * len(found) // size)

    def _exchanged(self, queue: Queue, finished: Sequence[Message], count: int) -> list[Message]:
        where = self.handler.where
        if finished and count:
            try:
                return queue.exchange(finished, count, where=where)
            except ClaimLost as error:
                _log.warning("Queue %s: %s", queue.name, error)
            except DatabaseUnavailable as error:
                _log.info("Queue %s: %s", queue.name, error)
        # An exchange that failed may have acked before it failed to claim.
        unsettled = [message for message in finished if not message.settled]
        if unsettled:
            self._threads.insist(lambda: _ack(queue, unsettled))
        found: list[Message] = []
        if count:
            self._threads.insist(lambda: found.extend(queue.consume(count, where=where)))
        return found

    def _sort(self, found: Sequence[Message]) -> None:
        # What is more urgent goes before what was claimed earlier.
        last, self._last_priority = self._last_priority, found[-1].priority
        if found[0].priority < last:
            ready = _drained(self._ready)
            self._ready.extend(sorted(ready, key=lambda each: each[0].priority))

    def _take_finished(self) -> list[Message]:
        with self._changed:
            finished, self._finished, self._finished_at = self._finished, [], math.inf
        return finished

    def _give_back(self, *, draining: bool) -> None:
        back = [message for message, _ in _drained(self._ready)]
        if not draining:
            self._mean, self._most_ahead = max(self._mean, HORIZON_SECONDS), 0
        queue = self.queue
        try:
            self._threads.insist(lambda: queue.release(back))
        except ClaimLost as lost:
            _log.info("Queue %s: %s", queue.name, lost)
        finally:
            for message in back:
                self.in_hand.pop(id(message), None)

    def _wait(self, now: float) -> None:
        left = min(self._finished_at + ACK_SECONDS, self._stale_at()) - now
        if self._seen is None or self.looks():
            with self._changed:
                if not self._stirred:
                    self._changed.wait(None if left == math.inf else max(0.0, left))
            return
        self._idle = True
        try:
            self._parts.wakeups.listen()
            arrivals = self._parts.arrivals
            left = min(left, self._look_at - now)
            if arrivals.wait(self._seen, left, until=lambda: self._stirred):
                self._pause = self._bounds[0]
        finally:
            self._idle = False

    def _rest(self) -> None:
        self.asked_at = time.monotonic()
        with self._changed:
            self._changed.wait(Backoff(FIRST_RECONNECT, LAST_RECONNECT).pause())


def _drained(items: deque[T], most: float = math.inf) -> list[T]:
    # One by one, since others may take some at the same time.
    taken: list[T] = []
    with contextlib.suppress(IndexError):
        while len(taken) < most:
            taken.append(items.popleft())
    return taken


def _ack(queue: Queue, messages: Sequence[Message]) -> None:
    try:
        queue.ack(messages)
    except ClaimLost as error:
        _log.warning("Queue %s: %s", queue.name, error)
