"""Wake-ups: processes tell each other of new messages, instead of waiting for the next poll.

They only shorten the wait: consumers look again and again underneath, so that a wake-up that is
lost, or never sent, delays a message by a poll and no more.

Where telling costs the publisher something (PostgreSQL's NOTIFY), a burst is told of once: a
consumer that was woken looks often for a while, and finds the rest of it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import time
from typing import TYPE_CHECKING, Final

from sqlalchemy import TwoPhaseTransaction

from queue_over_sql.errors import QueueError, ServiceClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from queue_over_sql.arrivals import Arrivals
    from queue_over_sql.connections import Connections
    from queue_over_sql.dialects.compiled import StatementCache
    from queue_over_sql.dialects.watching import Watch
    from queue_over_sql.runtime import Running

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
            self._connections.run(lambda c: dialect.tell(c, sql), repeat=False)
        except QueueError as error:
            _log.debug("Others were not told of new messages, and will find them: %s", error)

    def tell_on(self, connection: Connection, sql: StatementCache) -> None:
        """The same of messages that are there when the caller's transaction commits.

        Not of one in two phases: PostgreSQL refuses to prepare it once it has executed NOTIFY.
        """
        if isinstance(connection.get_transaction(), TwoPhaseTransaction):
            return
        if self._is_news(sql):
            self._connections.dialect.tell(connection, sql)

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

    def await_next_look(
        self, seen: int, pause: float, bounds: tuple[float, float], left: float = math.inf
    ) -> float:
        """Sleep until something arrives or it is time to look again; returns the next pause.

        Args:
            seen: the count of arrivals before the look that found nothing.
            pause: about how many seconds to sleep at most.
            bounds: the shortest and the longest pause.
            left: seconds after which nobody wants to look any more.
        """
        self.listen()
        # Jitter keeps those who met once from meeting again in step.
        jittered = pause * random.uniform(0.75, 1.25)  # noqa: S311
        burst = self._arrivals.wait(seen, min(left, jittered))
        return bounds[0] if burst else min(bounds[1], pause * 1.5)

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
        if not self._enabled or not self._connections.dialect.tells_others:
            return False
        name, now = sql.subject.live.fullname, time.monotonic()
        if now - self._told_at.get(name, float("-inf")) < _BURST_SECONDS:
            return False
        if len(self._told_at) >= _MOST_TOLD:
            self._told_at.clear()
        self._told_at[name] = now
        return True

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closed:
            began = time.monotonic()
            try:
                if not self._connections.dialect.hears_others:
                    return
                with self._connections.apart() as connection:
                    if not self._follow(connection):
                        return
            except ServiceClosed:
                return
            except QueueError as error:
                _log.debug("The watch for messages of others ended: %s", error)
            if time.monotonic() - began > _LAST_PAUSE:
                pause = _FIRST_PAUSE
            self._ended.wait(pause)
            pause = min(_LAST_PAUSE, 2 * pause)

    def _follow(self, connection: Connection) -> bool:
        """Watch until the end; returns False where this database has no way to."""
        watch = self._connections.dialect.watch(connection, self._connections.runtime.sleep)
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
