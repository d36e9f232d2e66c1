"""What wakes a consumer between two looks: messages of this process and of others."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from typing import TYPE_CHECKING, Final

from sqlalchemy import TwoPhaseTransaction

from queue_over_sql.backoff import Backoff
from queue_over_sql.errors import QueueError, ServiceClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.database.runtime import Running, Runtime
    from queue_over_sql.dialects.base import Watch
    from queue_over_sql.dialects.compiled import StatementCache


class Arrivals:
    """What has arrived for one service, counted, so that nothing falls between look and wait."""

    def __init__(self, runtime: Runtime) -> None:
        self._condition = runtime.condition()
        self._waited_for = runtime.condition()
        self.count = 0
        self._last_burst = 0
        self._waiting: set[object] = set()

    def announce(self, *, burst: bool = False) -> None:
        """Something may have arrived; ``burst``: more may come of which nobody will be told."""
        with self._condition:
            self.count += 1
            if burst:
                self._last_burst = self.count
            self._condition.notify_all()

    def wait(self, seen: int, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Sleep until something arrives, at most ``seconds``; returns whether a burst began.

        Not at all if something has arrived since the look that found nothing, when ``count`` was
        ``seen``. ``until`` is what else ends it; ``stir()`` has it asked again.
        """
        me = object()
        try:
            with self._waited_for:
                self._waiting.add(me)
                if len(self._waiting) == 1:
                    self._waited_for.notify_all()
            with self._condition:
                ends_at = time.monotonic() + seconds
                while self.count == seen and not until():
                    left = ends_at - time.monotonic()
                    if left <= 0:
                        break
                    self._condition.wait(left)
                return self._last_burst > seen
        finally:
            # Wherever an interrupt hit: nobody who has left may seem to wait.
            self._waiting.discard(me)

    def stir(self) -> None:
        """Have those who wait ask what else they wait for."""
        with self._condition:
            self._condition.notify_all()

    def wait_for_waiting(self, seconds: float) -> bool:
        """Sleep until somebody waits here, at most ``seconds``; whether somebody does."""
        with self._waited_for:
            if not self._waiting:
                self._waited_for.wait(seconds)
            return bool(self._waiting)

    def interrupt(self) -> None:
        """End ``wait_for_waiting`` of another."""
        with self._waited_for:
            self._waited_for.notify_all()


_log = logging.getLogger(__name__)

# So long after it told of a queue a process tells of it again.
_BURST_SECONDS: Final = 0.01
# Of so many queues it is remembered when they were told of: replies have queues that come and go.
_MOST_TOLD: Final = 1000
# How long a watch goes on before it is asked whether somebody still waits.
_WATCH_SECONDS: Final = 1.0
# How often what it heard is taken while nobody waits: the server has limited room for the rest,
# and without any it refuses to commit what tells of messages.
_IDLE_SECONDS: Final = 1.0
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 30.0
# How long the end of a service waits for the end of its watch.
_END_SECONDS: Final = 1.0


class WakeUps:
    """The wake-ups of one service.

    Args:
        connections: to its database.
        arrivals: what is told of messages.
        wanted: whether this service has opened a queue, by the full name of its table.
        enabled: False to neither tell nor watch.
    """

    def __init__(
        self,
        connections: Connections,
        arrivals: Arrivals,
        wanted: Callable[[str], bool],
        *,
        enabled: bool,
    ) -> None:
        self._connections = connections
        self._arrivals = arrivals
        self._wanted = wanted
        # A database of one connection has no other processes.
        self._enabled = enabled and connections.has_others
        self._lock = connections.runtime.lock()
        self._told_at: dict[str, float] = {}
        self._running: Running | None = None
        self._pid = os.getpid()
        self._watch: Watch | None = None
        self._closed = False
        self._ended = connections.runtime.event()

    def tell(self, sql: StatementCache) -> None:
        """Tell other processes of a queue whose new messages are committed."""
        if not self._is_news(sql):
            return
        try:
            dialect = self._connections.dialect
            self._connections.run(lambda c: dialect.notifications.tell(c, sql), repeat=False)
        except QueueError as error:
            _log.debug(
                "Other processes could not be notified of new messages; they find them by "
                "polling: %s",
                error,
            )

    def tell_on(self, connection: Connection, sql: StatementCache) -> None:
        """The same of messages that are there when the caller's transaction commits.

        Not of one in two phases: PostgreSQL refuses to prepare it once it has executed NOTIFY.
        """
        if isinstance(connection.get_transaction(), TwoPhaseTransaction):
            return
        if self._is_news(sql):
            self._connections.dialect.notifications.tell(connection, sql)

    def listen(self) -> None:
        """Watch for messages of others from now on."""
        if not self._enabled or self._closed or (self._running and self._pid == os.getpid()):
            return
        with self._lock:
            if self._running is None or self._pid != os.getpid():
                # A watch of the parent's, whose sockets a fork shares, is not ours to interrupt.
                self._pid, self._watch = os.getpid(), None
                start = self._connections.runtime.start
                self._running = start("queue-over-sql-wake-ups", self._run)

    def await_next_look(self, seen: int, pauses: Backoff, left: float = math.inf) -> None:
        """Sleep until something arrives or it is time to look again.

        Args:
            seen: the count of arrivals before the look that found nothing.
            pauses: between the looks; see ``look_pauses``.
            left: seconds after which nobody wants to look any more.
        """
        self.listen()
        if self._arrivals.wait(seen, min(left, pauses.pause())):
            pauses.reset()

    def stop(self) -> None:
        """Watch no more."""
        self._closed = True
        self._ended.set()
        with self._lock:
            running, self._running = self._running, None
        if running is None or self._pid != os.getpid():
            return
        self._arrivals.interrupt()
        if not self._connections.runtime.stop(running) and self._watch is not None:
            self._watch.interrupt()
        running.join(_END_SECONDS)

    def _is_news(self, sql: StatementCache) -> bool:
        """Whether a queue's messages are worth a word now: not so soon after the last one."""
        if not self._enabled or not self._connections.dialect.notifications.tells_others:
            return False
        name, now = sql.subject.live.fullname, time.monotonic()
        if now - self._told_at.get(name, float("-inf")) < _BURST_SECONDS:
            return False
        if len(self._told_at) >= _MOST_TOLD:
            self._told_at.clear()
        self._told_at[name] = now
        return True

    def _run(self) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LAST_PAUSE)
        while not self._closed:
            began = time.monotonic()
            try:
                if not self._connections.dialect.notifications.hears_others:
                    return
                with self._connections.apart() as connection:
                    if not self._follow(connection):
                        return
            except ServiceClosed:
                return
            except QueueError as error:
                _log.debug(
                    "Listening for new messages of other processes failed, so consumers poll: %s",
                    error,
                )
            if time.monotonic() - began > _LAST_PAUSE:
                backoff.reset()
            self._ended.wait(backoff.pause())

    def _follow(self, connection: Connection) -> bool:
        watch = self._connections.dialect.notifications.watch(
            connection, self._connections.runtime.sleep
        )
        if watch is None:
            return False
        self._watch = watch
        # What came before the watch began was not told.
        self._arrivals.announce()
        with contextlib.closing(watch):
            while not self._closed:
                awaited = self._arrivals.wait_for_waiting(_IDLE_SECONDS)
                if watch.wait(_WATCH_SECONDS if awaited else 0, self._wanted):
                    self._arrivals.announce(burst=watch.bursts)
        return False
