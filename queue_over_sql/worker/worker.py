"""Worker: the run-loop around handlers: several at once, polling, signals and reconnecting.

Who has finished messages *exchanges* them: the ack of the last ones and the claim of
the next are one transaction, which is what a durable queue's speed is made of.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from typing import TYPE_CHECKING, TypeVar

from queue_over_sql.backoff import Backoff, OutageLog
from queue_over_sql.errors import (
    ClaimLost,
    DatabaseUnavailable,
    QueueError,
    QueueSchemaMismatch,
    ServiceClosed,
)
from queue_over_sql.queue import name_of
from queue_over_sql.schema.conditions import check_condition
from queue_over_sql.settings import check_flag, check_whole
from queue_over_sql.worker.handlers import (
    Handler,
    HandlerFunction,
    HandlerRun,
    is_asynchronous,
)
from queue_over_sql.worker.lease_renewal import LeaseKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from sqlalchemy import ColumnElement

    from queue_over_sql.catalog import ServiceParts
    from queue_over_sql.database.runtime import Running
    from queue_over_sql.message import Message
    from queue_over_sql.queue import Queue

    F = TypeVar("F", bound=HandlerFunction)


_log = logging.getLogger(__name__)

# How long a thread stays with one queue before it looks at the worker's others.
_TURN_SECONDS = 1.0
_FIRST_RECONNECT, _LAST_RECONNECT = 0.1, 5.0
# How long it takes to give back what it abandons.
_ABANDON_SECONDS = 10.0
# How long it waits for a stopped task to end.
_END_SECONDS = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Worker:
    """Runs handlers over the messages of queues. Made by ``service.worker()``.

    Raises:
        TypeError, ValueError: an argument has no sensible value.
    """

    def __init__(
        self,
        parts: ServiceParts,
        start: Callable[[], None],
        concurrency: int,
        *,
        batch: int,
        poll_interval: tuple[float, float],
    ) -> None:
        self._start_service = start
        self._parts = parts
        self._concurrency = check_whole("concurrency", concurrency)
        self._batch = check_whole("batch", batch)
        self._first_poll, self._last_poll = _poll_interval(poll_interval)
        self._handlers: list[Handler] = []
        runtime = self._runtime = parts.connections.runtime
        self._keeper = LeaseKeeper(runtime)
        self._outage = OutageLog("The worker")
        self._draining = runtime.event()
        self._aborting = runtime.event()
        # By thread: what it is working on, for the case that it is not waited for.
        self._in_hand: dict[Hashable, tuple[Queue, list[Message]]] = {}

    def handle(
        self,
        queue: str,
        *,
        transactional: bool = False,
        lease_keepalive: bool = True,
        batch: int | None = None,
        where: ColumnElement[bool] | None = None,
    ) -> Callable[[F], F]:
        """Make a function the handler of a queue.

        Args:
            queue: name of the queue; it must exist when the worker runs.
            transactional: call ``function(message, connection)`` and commit what it writes
                through ``connection`` together with the ack.
            lease_keepalive: renew the lease while the function runs.
            batch: call the function with a list of up to so many messages.
            where: only messages that match this SQLAlchemy condition on the queue's ``table``.
                With it a queue may have several handlers; what matches none of them stays.

        Raises:
            TypeError: the function is asynchronous, ``where`` is no condition, or ``queue`` no
                queue.
            ValueError: the queue has a handler already, and not all of them have a ``where``.
        """
        name = name_of(queue)
        others = [handler for handler in self._handlers if handler.queue == name]
        if others and (where is None or any(handler.where is None for handler in others)):
            msg = (
                f"queue {name!r} has a handler in this worker already; several are possible "
                "where each has a where="
            )
            raise ValueError(msg)
        check_flag("transactional", transactional)
        check_flag("lease_keepalive", lease_keepalive)
        if where is not None:
            check_condition(where)
        if batch is not None:
            batch = check_whole("batch", batch)

        def register(function: F) -> F:
            if is_asynchronous(function):
                msg = (
                    f"the handler of queue {name!r} must be a plain function: an asynchronous one "
                    "would not run, and its messages would be finished all the same"
                )
                raise TypeError(msg)
            self._handlers.append(
                Handler(name, function, transactional, lease_keepalive, batch, where)
            )
            return function

        return register

    def run(self, *, signals: bool = False) -> None:
        """Handle messages until ``stop()`` or ``abort()``; starts the service where needed.

        Args:
            signals: whether SIGTERM and SIGINT end it, too; for a program that is nothing but a
                worker, as ``queue-over-sql worker`` is. The first one drains: handlers that run
                are waited for, what was only claimed is released. A second one stops at once;
                what was being handled comes back. It needs the main thread; in any other, and by
                default, signals mean what they meant before.

        Raises:
            ValueError: there is no handler.
            QueueNotFound: a handler's queue does not exist.
            DatabaseUnavailable: the database cannot be reached at the start. Once running, the
                worker waits for a database that goes away.
        """
        if not self._handlers:
            msg = "this worker has no handler: add one with @worker.handle('queue')"
            raise ValueError(msg)
        with self._runtime.on_signals(_SIGNALS if signals else (), self._on_signal):
            self._begin()
            if not self._draining.is_set():
                self._run_threads()

    def _begin(self) -> None:
        """Get ready, beside this thread, which has to hear of signals even in a silent network."""
        if not self._parts.connections.background:
            self._prepare()
            return
        failed: list[BaseException] = []

        def prepare() -> None:
            try:
                self._prepare()
            except BaseException as error:  # noqa: BLE001 - it is raised by who waits
                failed.append(error)

        running = self._runtime.start("queue-over-sql-worker-start", prepare)
        while running.is_alive() and not self._aborting.is_set():
            running.join(0.05)
        if not failed:
            return
        if not (self._draining.is_set() and isinstance(failed[0], DatabaseUnavailable)):
            raise failed[0]
        _log.warning("The worker ends before it has begun: %s", failed[0])

    def _prepare(self) -> None:
        self._start_service()
        for handler in self._handlers:
            self._parts.queue(handler.queue)

    def _run_threads(self) -> None:
        start = self._runtime.start
        names = [f"queue-over-sql-worker-{index}" for index in range(self._concurrency)]
        threads = [start(name, self._loop, index) for index, name in enumerate(names)]
        try:
            while any(thread.is_alive() for thread in threads) and not self._aborting.is_set():
                for thread in threads:
                    thread.join(0.05)
        except BaseException:
            self._aborting.set()
            self._draining.set()
            raise
        finally:
            self._keeper.stop()
            if self._aborting.is_set():
                connections = self._parts.connections
                connections.within(_ABANDON_SECONDS, lambda: self._leave(threads))

    def _leave(self, threads: Sequence[Running]) -> None:
        self._abandon()
        stopped = [thread for thread in threads if self._runtime.stop(thread)]
        # They may have got messages while others were given back.
        for each in stopped:
            each.join(_END_SECONDS)
        if stopped:
            self._abandon()

    def stop(self) -> None:
        """Let handlers that run finish, then end ``run()``; may be called from any thread.

        What was only claimed is released. The service is not stopped.
        """
        self._draining.set()
        self._parts.arrivals.announce()

    def abort(self) -> None:
        """End ``run()`` without waiting for handlers; their messages are given to others."""
        self._aborting.set()
        self.stop()

    # -- the loop of one thread

    def _loop(self, index: int) -> None:
        pause = self._first_poll
        turn = index
        arrivals = self._parts.arrivals
        while not self._draining.is_set():
            worked, seen = False, arrivals.count
            for _ in self._handlers:
                handler = self._handlers[turn % len(self._handlers)]
                turn += 1
                worked |= self._serve_safely(handler)
                if self._draining.is_set():
                    return
            if worked:
                pause = self._first_poll
                continue
            bounds = (self._first_poll, self._last_poll)
            pause = self._parts.wakeups.await_next_look(seen, pause, bounds)

    def _serve_safely(self, handler: Handler) -> bool:
        try:
            return self._serve(handler)
        except ServiceClosed:
            self._draining.set()
        except QueueSchemaMismatch as error:
            _log.warning("Queue %s is opened anew: %s", handler.queue, error)
            self._parts.catalog.forget(handler.queue)
        except QueueError as error:
            _log.warning("Queue %s: %s", handler.queue, error)
            self._draining.wait(Backoff(_FIRST_RECONNECT, _LAST_RECONNECT).pause())
        except Exception:  # noqa: BLE001 - whatever it is
            # A thread that died unseen would leave a worker that looks well and does nothing.
            _log.exception("Queue %s: the worker goes on after an unexpected error.", handler.queue)
            self._draining.wait(Backoff(_FIRST_RECONNECT, _LAST_RECONNECT).pause())
        return False

    def _serve(self, handler: Handler) -> bool:
        queue, count = self._parts.queue(handler.queue), max(self._batch, handler.batch or 1)
        run = HandlerRun(handler, queue, self._parts.connections, self._keeper, self._insist)
        with contextlib.closing(run):
            messages = self._claim(queue, handler, count)
            worked = bool(messages)
            turn_ends = time.monotonic() + _TURN_SECONDS
            while messages:
                self._in_hand[self._runtime.me()] = queue, messages
                finished = run.handle(messages, self._draining.is_set)
                over = len(self._handlers) > 1 and time.monotonic() > turn_ends
                if self._draining.is_set() or over:
                    self._ack(queue, finished)
                    break
                messages = self._exchange(queue, handler, finished, count)
            self._in_hand.pop(self._runtime.me(), None)
        return worked

    def _claim(self, queue: Queue, handler: Handler, count: int) -> list[Message]:
        found: list[Message] = []
        self._insist(lambda: found.extend(queue.consume(count, where=handler.where)))
        return found

    def _exchange(
        self, queue: Queue, handler: Handler, finished: Sequence[Message], count: int
    ) -> list[Message]:
        if not finished:
            return self._claim(queue, handler, count)
        try:
            return queue.exchange(finished, count, where=handler.where)
        except ClaimLost as error:
            _log.warning("Queue %s: %s", queue.name, error)
        except DatabaseUnavailable as error:
            self._outage.began(error)
            self._ack(queue, finished)
        return self._claim(queue, handler, count)

    def _ack(self, queue: Queue, finished: Sequence[Message]) -> None:
        # An exchange that failed may have acked before it failed to claim.
        unsettled = [message for message in finished if not message.settled]

        def ack() -> None:
            try:
                queue.ack(unsettled)
            except ClaimLost as error:
                _log.warning("Queue %s: %s", queue.name, error)

        if unsettled:
            self._insist(ack)

    def _insist(self, act: Callable[[], None]) -> None:
        """Do it, however often the database goes away; gives up only when told to stop."""
        backoff = Backoff(_FIRST_RECONNECT, _LAST_RECONNECT)
        while True:
            try:
                act()
            except DatabaseUnavailable as error:
                self._outage.began(error)
                if self._draining.wait(backoff.pause()):
                    raise
            else:
                self._outage.ended()
                return

    # -- signals and the end

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._draining.is_set():
            _log.warning("%s again: stopping at once.", name)
            self._parts.connections.watchdog.hurry()
            self._aborting.set()
            return
        _log.info("%s: finishing what runs. Once more stops at once.", name)
        # Not wake(): its lock may be held by the very thread that this signal interrupted.
        self._draining.set()

    def _abandon(self) -> None:
        """Give back what handlers are still working on; the fence keeps them from settling it."""
        for queue, messages in list(self._in_hand.values()):
            for message in messages:
                try:
                    queue.release(message)
                except ClaimLost:
                    _log.debug("%r was settled.", message)
                except QueueError as error:
                    _log.warning("The reaper will give back %r: %s", message, error)


def _poll_interval(given: tuple[float, float]) -> tuple[float, float]:
    try:
        first, last = (float(value) for value in given)
    except (TypeError, ValueError, OverflowError) as error:
        msg = "poll_interval must be two numbers of seconds: the shortest and the longest pause"
        raise TypeError(msg) from error
    if not 0 < first <= last:
        msg = "poll_interval must be two numbers of seconds above zero, the shorter one first"
        raise ValueError(msg)
    return first, last
