"""Wake-ups of consumers between two polls: by messages of this process and of others."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from sqlalchemy import TwoPhaseTransaction
from sqlalchemy.exc import SQLAlchemyError

from queue_over_sql.errors import QueueError, ServiceClosed
from queue_over_sql.sql.operation import Operation
from queue_over_sql.values.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

    from queue_over_sql.database.connections import Connections
    from queue_over_sql.database.forks import ForkGuard
    from queue_over_sql.database.runtime import Event, Running, Runtime
    from queue_over_sql.database.sessions import Session
    from queue_over_sql.sql.compiled import StatementCache
    from queue_over_sql.sql.notifications import Watch


class Arrivals:
    """Counts the arrivals of messages for one service, so that no wait misses one."""

    def __init__(self, runtime: Runtime) -> None:
        self._condition = runtime.condition()
        self._waited_for = runtime.condition()
        self.count = 0
        self._last_burst = 0
        self._waiting: set[object] = set()

    def notify(self, *, burst: bool = False) -> None:
        """Note that messages may have arrived; ``burst``: more may come without a notification."""
        with self._condition:
            self.count += 1
            if burst:
                self._last_burst = self.count
            self._condition.notify_all()

    def wait(self, seen: int, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Sleep until something arrives, at most ``seconds``; returns whether a burst began.

        It returns at once if something has arrived since ``count`` was ``seen``, which is before
        the poll that found nothing. ``until`` may also end the wait; ``wake()`` makes it check
        again.
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
            # Even after an interrupt the number of waiting callers must be right.
            self._waiting.discard(me)

    def wake(self) -> None:
        """Let waiting callers check their ``until`` again."""
        with self._condition:
            self._condition.notify_all()

    def wait_for_waiting(self, seconds: float) -> bool:
        """Sleep until somebody waits here, at most ``seconds``; returns whether somebody does."""
        with self._waited_for:
            if not self._waiting:
                self._waited_for.wait(seconds)
            return bool(self._waiting)

    def interrupt(self) -> None:
        """End the ``wait_for_waiting`` of another thread."""
        with self._waited_for:
            self._waited_for.notify_all()


_log = logging.getLogger(__name__)

# The queues of which an operation of this context has made messages ready; None: nobody asks.
_ready: ContextVar[list[StatementCache] | None] = ContextVar("ready", default=None)


def note_ready(sql: StatementCache) -> None:
    """Note that the operation has made a message of this queue ready that was there before."""
    noted = _ready.get()
    if noted is not None:
        noted.append(sql)


@contextlib.contextmanager
def noting_ready() -> Iterator[list[StatementCache]]:
    """Collect the queues of which operations inside make messages ready."""
    noted: list[StatementCache] = []
    before = _ready.set(noted)
    try:
        yield noted
    finally:
        _ready.reset(before)


# A process notifies about the same queue again after this time at the earliest.
_BURST_SECONDS: Final = 0.01
# The largest number of queues whose last notification is remembered; reply queues come and go.
_MOST_NOTIFIED: Final = 1000
# How long a watch lasts before it checks whether somebody still waits.
_WATCH_SECONDS: Final = 1.0
# How often notifications are read while nobody waits. The server's buffer for them is limited, and
# when it is full, commits with notifications fail.
_IDLE_SECONDS: Final = 1.0
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 30.0
# How long the stop of a service waits for its watch to end.
_END_SECONDS: Final = 1.0


class WakeUps:
    """The wake-ups of one service.

    Args:
        connections: the connections to its database.
        arrivals: notified of messages.
        wanted: whether this service has opened a queue, by the full name of its table.
        enabled: False neither to notify nor to watch.
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
        self.wanted = wanted
        # No other process can use a database that is one connection.
        self._enabled = enabled and connections.has_others
        self._lock = connections.runtime.lock()
        # By the queue's table, and whether it was in a transaction of a caller.
        self._notified_at: dict[tuple[str, bool], float] = {}
        self._running: Running | None = None
        self._pid = os.getpid()
        self._watch: Watch | None = None
        self._closed = False
        self._ended = connections.runtime.event()
        connections.forks.interrupt(weakref.WeakMethod(self._interrupt))

    def notify(self, sql: StatementCache) -> None:
        """Notify other processes of a queue whose new messages are committed."""
        if not self._is_news(sql):
            return
        try:
            dialect = self._connections.dialect
            notifying = Operation(lambda c: dialect.notifications.notify(c, sql), repeatable=False)
            self._connections.run(notifying)
        except QueueError as error:
            _log.debug(
                "Other processes could not be notified of new messages; they find them by "
                "polling: %s",
                error,
            )

    def notify_on(self, connection: Connection, sql: StatementCache) -> None:
        """As ``notify``, when the caller's transaction commits.

        Not in a two-phase transaction, because PostgreSQL cannot prepare one that used NOTIFY.
        """
        if isinstance(connection.get_transaction(), TwoPhaseTransaction):
            return
        if self._is_news(sql, later=True):
            self._connections.dialect.notifications.notify(connection, sql)

    def listen(self) -> None:
        """Start to watch for messages of others."""
        if not self._enabled or self._closed or (self._running and self._pid == os.getpid()):
            return
        with self._lock:
            if self._running is None or self._pid != os.getpid():
                # A fork shares the sockets of the parent's watch, which must not be interrupted.
                self._pid, self._watch, self._running = os.getpid(), None, None
                listener = _Listener(self, self._arrivals, self._ended, self._connections.forks)
                start = self._connections.runtime.start
                self._running = start("queue-over-sql-wake-ups", listener.run)

    def await_next_poll(self, seen: int, pauses: Backoff, left: float = math.inf) -> None:
        """Sleep until something arrives or the next poll is due.

        Args:
            seen: the count of arrivals before the poll that found nothing.
            pauses: between the polls; see ``poll_pauses``.
            left: seconds until the caller stops polling.
        """
        self.listen()
        if self._arrivals.wait(seen, min(left, pauses.pause())):
            pauses.reset()

    def stop(self) -> None:
        """Stop watching."""
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

    def _interrupt(self) -> None:
        # The thread goes on with a new connection.
        self._arrivals.interrupt()
        if self._watch is not None:
            self._watch.interrupt()

    def _is_news(self, sql: StatementCache, *, later: bool = False) -> bool:
        """Whether to notify about a queue now: not too soon after the last time.

        What is heard ``later``, or never, says nothing about what is committed by then, and what
        was heard before says nothing about what is committed later. So these count apart.
        """
        if not self._enabled or not self._connections.dialect.notifications.notifies_others:
            return False
        about, now = (sql.subject.live.fullname, later), time.monotonic()
        if now - self._notified_at.get(about, float("-inf")) < _BURST_SECONDS:
            return False
        if len(self._notified_at) >= _MOST_NOTIFIED:
            self._notified_at.clear()
        self._notified_at[about] = now
        return True

    def begin(self) -> tuple[Session, Watch] | None:
        """Begin to watch; None if this database notifies nobody. The caller drops the session."""
        connections = self._connections
        notifications = connections.dialect.notifications
        if not notifications.notified_by_others:
            return None
        session = connections.apart()
        try:
            watch = notifications.watch(session.connection, connections.runtime.sleep)
        except BaseException:
            session.drop()
            raise
        if watch is None:
            session.drop()
            return None
        self._watch = watch
        # Messages from before the watch began were not notified.
        self._arrivals.notify()
        return session, watch

    def is_left(self, session: Session) -> bool:
        """Whether it is too old, or other sessions left its server or lost their way to it.

        Nobody sends anything on it, so a dead connection would not be noticed.
        """
        connections = self._connections
        return session.is_old or session.made_at < max(connections.switched_at, connections.lost_at)


class _Listener:
    """Watches for messages of others, until the service ends or nobody uses it any more.

    While it waits it keeps nothing of the service, so that a forgotten one is collected.
    """

    def __init__(
        self, wakeups: WakeUps, arrivals: Arrivals, ended: Event, forks: ForkGuard
    ) -> None:
        self._wakeups = weakref.ref(wakeups)
        self._arrivals = arrivals
        self._ended = ended
        self._forks = forks

    def run(self) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LAST_PAUSE)
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                with self._forks.using():
                    if not self._follow():
                        return
            except ServiceClosed:
                return
            except (QueueError, SQLAlchemyError) as error:
                _log.debug(
                    "Listening for new messages of other processes failed, so consumers poll: %s",
                    error,
                )
                if time.monotonic() - began > _LAST_PAUSE:
                    backoff.reset()
                self._ended.wait(backoff.pause())

    def _follow(self) -> bool:
        opened = self._open()
        if opened is None:
            return False
        session, watch = opened
        # When a burst is over of which only the first message was notified.
        over_at = math.inf
        try:
            with contextlib.closing(watch):
                while not (self._ended.is_set() or self._forks.forking):
                    if self._wakeups() is None:
                        return False
                    if self._is_left(session):
                        break
                    awaited = self._arrivals.wait_for_waiting(_IDLE_SECONDS)
                    seconds = min(_WATCH_SECONDS if awaited else 0, over_at - time.monotonic())
                    if watch.wait(max(0, seconds), self._wanted):
                        self._arrivals.notify(burst=watch.bursts)
                        over_at = time.monotonic() + 2 * _BURST_SECONDS if watch.bursts else over_at
                    elif time.monotonic() >= over_at:
                        self._arrivals.notify()
                        over_at = math.inf
        finally:
            session.drop()
        return True

    def _open(self) -> tuple[Session, Watch] | None:
        wakeups = self._wakeups()
        return None if wakeups is None else wakeups.begin()

    def _is_left(self, session: Session) -> bool:
        wakeups = self._wakeups()
        return wakeups is not None and wakeups.is_left(session)

    def _wanted(self, table: str) -> bool:
        wakeups = self._wakeups()
        return wakeups is not None and wakeups.wanted(table)
