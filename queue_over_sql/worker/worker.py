"""Worker: runs handlers in several threads, reconnects, and drains on signals.

Supplies claim messages before the threads need them, and ack them; see ``worker/supply.py``.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import signal
import time
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack, overload

from queue_over_sql.consumers.lease_renewal import LeaseKeeper
from queue_over_sql.database.runtime import THREADS
from queue_over_sql.errors import DatabaseUnavailable, QueueError
from queue_over_sql.queue import core_of, name_of
from queue_over_sql.sql.conditions import check_condition
from queue_over_sql.values.checks import check_choice, check_flag, check_function, check_whole
from queue_over_sql.values.durations import to_timedelta
from queue_over_sql.worker.handler import (
    Handler,
    HandlerDecorator,
    HandlerFunction,
    HandlerOptions,
    check_kind,
    check_parameters,
    keeping_result,
)
from queue_over_sql.worker.middleware import Middleware, check_middleware, within_middleware
from queue_over_sql.worker.supply import Supply
from queue_over_sql.worker.threads import HandlerThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import ColumnElement, Connection

    from queue_over_sql.catalog.service_parts import ServiceParts
    from queue_over_sql.database.runtime import LoopProgress, Running
    from queue_over_sql.message import Message, Payload
    from queue_over_sql.queue import Queue
    from queue_over_sql.values.durations import Duration

    R = TypeVar("R")


_log = logging.getLogger(__name__)

# How long it may take to release the messages of abandoned calls.
_ABANDON_SECONDS = 10.0
# How long to wait for a stopped task to end.
_END_SECONDS = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Worker:
    """Runs handlers for the messages of queues. ``service.worker()`` creates it.

    Raises:
        TypeError, ValueError: an argument has an invalid value.
    """

    def __init__(
        self,
        parts: ServiceParts,
        start: Callable[[], None],
        concurrency: int,
        *,
        prefetch: int | None,
        ack: str,
        poll_interval: tuple[float, float],
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._start_service = start
        self._parts = parts
        self._concurrency = check_whole("concurrency", concurrency)
        self._prefetch = None if prefetch is None else check_whole("prefetch", prefetch)
        check_choice("ack", ack, ("batch", "each"))
        self._each = ack == "each"
        self._bounds = _poll_interval(poll_interval)
        self._handlers: list[Handler] = []
        self._signalled = self._runs = False
        runtime = self._runtime = parts.connections.runtime
        self.middleware = check_middleware(middleware, asynchronous=runtime is not THREADS)
        """The middleware of the handlers, the outermost first."""
        self._make_ready()

    def _make_ready(self) -> None:
        self._keeper = LeaseKeeper(self._runtime)
        self._draining = self._runtime.event()
        self._aborting = self._runtime.event()
        self._threads = HandlerThreads(
            self._parts, self._draining, self._concurrency, each=self._each
        )

    @overload
    def handle(
        self,
        queue: Queue[Payload] | str,
        *,
        transactional: Literal[False] = False,
        batch: None = None,
        **options: Unpack[HandlerOptions[Message]],
    ) -> HandlerDecorator[[Message[Payload]]]: ...
    @overload
    def handle(
        self,
        queue: Queue[Payload] | str,
        *,
        transactional: Literal[False] = False,
        batch: int,
        **options: Unpack[HandlerOptions[Message]],
    ) -> HandlerDecorator[[list[Message[Payload]]]]: ...
    @overload
    def handle(
        self,
        queue: Queue[Payload] | str,
        *,
        transactional: Literal[True],
        batch: None = None,
        **options: Unpack[HandlerOptions[Message]],
    ) -> HandlerDecorator[[Message[Payload], Connection]]: ...
    @overload
    def handle(
        self,
        queue: Queue[Payload] | str,
        *,
        transactional: Literal[True],
        batch: int,
        **options: Unpack[HandlerOptions[Message]],
    ) -> HandlerDecorator[[list[Message[Payload]], Connection]]: ...
    @overload
    def handle(
        self,
        queue: Queue | str,
        *,
        transactional: bool = False,
        batch: int | None = None,
        **options: Unpack[HandlerOptions[Message]],
    ) -> HandlerDecorator[...]: ...
    def handle(
        self,
        queue: Queue | str,
        *,
        transactional: bool = False,
        lease_keepalive: bool = True,
        batch: int | None = None,
        keep_result: bool = False,
        where: ColumnElement[bool] | None = None,
        commit_every: int = 1,
        timeout: Duration | None = None,
        slow_after: Duration | None = None,
        on_slow: Callable[[Message, float], object] | None = None,
    ) -> HandlerDecorator[...]:
        """Register a function as the handler of a queue.

        Args:
            queue: the queue or its name; it must exist when the worker starts.
            transactional: call ``function(message, connection)``, and commit its writes through
                ``connection`` together with the ack. The function must not commit or roll back.
            lease_keepalive: whether to renew the lease while the function runs. The lease of a
                message that waits for its turn is always renewed.
            batch: call the function with a list of up to this many messages. If it raises, all of
                them have failed. In its last attempt, unless it has only one, each is in a list of
                its own, so that none becomes a dead letter because of another one.
            keep_result: ack each message with what the function returns, a JSON value of up to
                64 KiB, for ``Queue.result``. Anything else makes the message a dead letter at once.
                Not with ``batch``. The queue needs ``archive="all"``.
            where: only messages that match this SQLAlchemy condition on the queue's ``table``. With
                ``where`` a queue may have several handlers; messages that match none of them stay
                in the queue.
            commit_every: for ``transactional``: handle up to this many messages in one transaction,
                for up to 50 ms. Each has a savepoint, so that a failure does not affect the others.
                If the whole transaction fails, the worker calls the function again for each
                message, in its own transaction.
            timeout: time limit for one call. After it the worker sets ``message.cancelled``, nacks
                the message, replaces the call's thread by another one, and aborts the transaction
                of the call. The thread still runs: a message with a group stays claimed and is
                nacked when it ends, or when the worker does, so that its group waits for that.
            slow_after: log a warning if a call takes longer than this.
            on_slow: a function that is also called then, in another thread, with each message of
                the call and the seconds since it began.

        Raises:
            TypeError: the function is asynchronous or a generator function, or an argument has a
                wrong type.
            ValueError: the queue already has a handler, and not all of them have a ``where``;
                ``keep_result`` is given with ``batch``; ``commit_every`` is given without
                ``transactional``, or with ``batch``; or a duration is not above zero.
        """
        name = name_of(queue)
        others = [handler for handler in self._handlers if handler.queue == name]
        _check_one_for_all(name, [where, *(handler.where for handler in others)])
        check_flag("transactional", transactional)
        check_flag("lease_keepalive", lease_keepalive)
        if where is not None:
            check_condition(where)
        if batch is not None:
            batch = check_whole("batch", batch)
        if check_flag("keep_result", keep_result) and batch is not None:
            msg = "keep_result is not possible with batch: ack each message with its own result"
            raise ValueError(msg)
        if check_whole("commit_every", commit_every) > 1 and (batch or not transactional):
            msg = (
                "commit_every needs transactional=True and no batch: a batch already is one call "
                "in one transaction"
            )
            raise ValueError(msg)
        limit, slow = _seconds("timeout", timeout), _seconds("slow_after", slow_after)
        check_function("on_slow", on_slow)
        if on_slow is not None:
            check_kind(on_slow, "on_slow")

        def register(function: Callable[..., R]) -> Callable[..., R]:
            check_kind(function, f"the handler of queue {name!r}")
            check_parameters(function, name, transactional=transactional, batch=batch is not None)
            called: HandlerFunction = function
            if self._runtime is THREADS:
                called = keeping_result(called) if keep_result else called
                called = within_middleware(self.middleware, called)
            self._handlers.append(
                Handler(
                    name,
                    called,
                    transactional,
                    lease_keepalive,
                    batch,
                    where,
                    commit_every,
                    limit,
                    slow,
                    on_slow,
                )
            )
            return function

        return register

    def run(self, *, signals: bool = False, until_empty: bool = False) -> None:
        """Handle messages until ``stop()`` or ``abort()``; starts the service if needed.

        Args:
            signals: whether SIGTERM and SIGINT stop the worker, for a program that only runs a
                worker. The first signal drains it: running handlers finish, and other claimed
                messages are released. A second one stops it immediately, and the messages in work
                are redelivered. This works only in the main thread. By default, the worker does not
                handle signals.
            until_empty: return when no handler has a due message, for cron jobs and tests. This
                includes retries that are due by then, and messages that handlers publish meanwhile.
                Messages that are due later, held, paused, or claimed by others stay in the queue,
                and so do those that wait for a rate or a limit. The worker may run again.

        Raises:
            ValueError: the worker has no handler; or a queue has several, by its name and by its
                title, and not all of them have a ``where``.
            QueueNotFound: a handler's queue does not exist.
            DatabaseUnavailable: the database cannot be reached at the start. Later the worker waits
                until the database is back.
            QueueError: so many handlers hang past their ``timeout`` that no thread is left. The
                worker replaces up to 10 hanging threads, or ``concurrency`` if that is more. Or its
                threads have ended although nobody stopped it.
        """
        if not self._handlers:
            msg = "this worker has no handler: add one with @worker.handle('queue')"
            raise ValueError(msg)
        self._threads.until_empty = check_flag("until_empty", until_empty)
        self._signalled, self._runs = False, True
        with self._runtime.on_signals(_SIGNALS if signals else (), self._on_signal):
            try:
                self._begin()
                if not self._draining.is_set():
                    self._run_threads()
            finally:
                self._runs = False
                self._parts.consumer.handling.end(self)
        if self._threads.emptied:
            self._make_ready()

    def _begin(self) -> None:
        """Start in the background, so that this thread notices signals in a network outage."""
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
        _log.warning("The worker cannot start: %s", failed[0])

    def _prepare(self) -> None:
        self._start_service()
        kinds = {}
        conditions: dict[str, list[ColumnElement[bool] | None]] = {}
        for place, handler in enumerate(self._handlers):
            context = core_of(self._parts.queue(handler.queue)).context
            # It may have been given by its title.
            self._handlers[place] = dataclasses.replace(handler, queue=context.name)
            kinds[context.name] = context.tables.known_kinds
            conditions.setdefault(context.name, []).append(handler.where)
            _check_one_for_all(context.name, conditions[context.name])
        self._parts.consumer.handling.begin(self, self._concurrency, kinds)
        if not self._runs:
            # The worker was interrupted while it started, and may have ended before.
            self._parts.consumer.handling.end(self)
            return
        self._parts.consumer.tell()

    def _run_threads(self) -> None:
        start, workers = self._runtime.start, self._threads
        workers.supplies = [self._supply(handler) for handler in self._handlers]
        workers.start()
        supplies = [start("queue-over-sql-supply", supply.run) for supply in workers.supplies]
        try:
            self._join(workers.at_work)
            if not self._aborting.is_set():
                workers.fail_if_all_ended()
            for supply in workers.supplies:
                supply.end()
            self._join(lambda: supplies)
            workers.end_all_hanging()
            self._join(workers.settling, _ABANDON_SECONDS)
        except BaseException:
            self.abort()
            raise
        finally:
            workers.end()
            self._keeper.stop()
            workers.limits.end()
            left = workers.stuck()
            if self._aborting.is_set():
                left += [*workers.at_work(), *supplies]
                connections = self._parts.connections
                connections.within(_ABANDON_SECONDS, lambda: self._leave(left))
                for supply in workers.supplies:
                    supply.end()
            else:
                for running in left:
                    self._runtime.stop(running)
        if workers.failure is not None:
            raise workers.failure

    def _supply(self, handler: Handler) -> Supply:
        return Supply(
            self._threads,
            handler,
            self._parts,
            self._keeper,
            prefetch=self._prefetch,
            each=self._each,
            bounds=self._bounds,
        )

    def _join(self, threads: Callable[[], Sequence[Running]], seconds: float = math.inf) -> None:
        ends_at = time.monotonic() + seconds
        while alive := [thread for thread in threads() if thread.is_alive()]:
            if self._aborting.is_set() or time.monotonic() > ends_at:
                return
            if self._draining.is_set():
                # The signal handler only sets it.
                self._threads.wake()
            alive[0].join(0.05)

    def _leave(self, threads: Sequence[Running]) -> None:
        # Tasks can be stopped, but threads cannot. Their transactions hold locks until they end.
        stopped = [thread for thread in threads if self._runtime.stop(thread)]
        ends_at = time.monotonic() + _END_SECONDS
        for each in stopped:
            each.join(max(0.0, ends_at - time.monotonic()))
        self._abandon()

    def stop(self) -> None:
        """Drain: let running handlers finish, then end ``run()``. Any thread may call this.

        Other claimed messages are released. The service is not stopped.
        """
        self._threads.drain()

    def abort(self) -> None:
        """End ``run()`` without waiting for handlers; their messages are redelivered."""
        self._aborting.set()
        self.stop()

    # -- signals and the end

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        # Whatever else makes it drain: a second signal is the second of those that were sent.
        again, self._signalled = self._signalled, True
        if again:
            _log.warning("%s again: the worker stops at once.", name)
            stop_at_once(self)
            return
        _log.info(
            "%s: the worker finishes its current messages and stops. Send the signal again to "
            "stop it at once.",
            name,
        )
        # Not wake(): the thread that the signal interrupted may hold its lock.
        self._draining.set()

    def _abandon(self) -> None:
        """Release messages in work; the fence stops their handlers from settling them."""
        # First those that are not begun, because no handler's transaction has locked them.
        for do in (Supply.release_ready, Supply.ack_finished, Supply.release_calls):
            for supply in self._threads.supplies:
                try:
                    do(supply)
                except QueueError as error:
                    _log.warning(
                        "Messages of queue %s could not be released; the reaper will release "
                        "them: %s",
                        supply.handler.queue,
                        error,
                    )
        self._threads.settle_hanging()


def stop_at_once(worker: Worker) -> None:
    """As ``abort``, with less than a second for the database; for a second signal.

    A signal handler may call it. It is for the other modules of this package.
    """
    worker._parts.connections.watchdog.hurry()  # noqa: SLF001 - its own module
    worker._draining.set()  # noqa: SLF001
    worker._aborting.set()  # noqa: SLF001


def _check_one_for_all(queue: str, conditions: Sequence[ColumnElement[bool] | None]) -> None:
    if len(conditions) > 1 and any(each is None for each in conditions):
        msg = (
            f"queue {queue!r} already has a handler in this worker; several handlers are possible "
            "if each has a where="
        )
        raise ValueError(msg)


def _seconds(argument: str, given: Duration | None) -> float | None:
    return None if given is None else to_timedelta(given, argument).total_seconds()


def narrow(worker: Worker, queues: Sequence[str] = (), concurrency: int | None = None) -> None:
    """Reduce a stopped worker to some of its handlers, or change its number of threads.

    Args:
        worker: the worker to change.
        queues: the queues whose handlers stay; all if it is empty.
        concurrency: as for ``QueueService.worker``; None: unchanged.

    Raises:
        ValueError: no handler has such a queue, or the number is not above zero.
    """
    known = dict.fromkeys(handler.queue for handler in worker._handlers)  # noqa: SLF001 - its own module
    for queue in queues:
        if queue not in known:
            msg = f"no handler of queue {queue!r}; this worker handles: {', '.join(known)}"
            raise ValueError(msg)
    if queues:
        left = [handler for handler in worker._handlers if handler.queue in queues]  # noqa: SLF001
        worker._handlers[:] = left  # noqa: SLF001
    if concurrency is not None:
        worker._concurrency = check_whole("concurrency", concurrency)  # noqa: SLF001
        worker._make_ready()  # noqa: SLF001


def handlers_of(worker: Worker) -> tuple[ServiceParts, list[Handler]]:
    """The handlers of a worker and the parts of its service, for ``queue_over_sql.testing``."""
    return worker._parts, worker._handlers  # noqa: SLF001 - its own module


def vital_parts(worker: Worker) -> tuple[ServiceParts, HandlerThreads, LoopProgress]:
    """The parts that show whether a worker is healthy, including its lease renewal."""
    return worker._parts, worker._threads, worker._keeper.progress  # noqa: SLF001 - its own module


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
