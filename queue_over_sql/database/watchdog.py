"""Watchdog: limits the wait for a database that does not answer.

A frozen server, or a proxy that has lost its server, still acknowledges packets but does not
answer. Neither drivers nor operating systems notice. A timeout per statement would also end
statements that are slow for good reason. So if somebody has waited for half of the time limit, the
watchdog sends a test query on its own connection. If nothing was answered in the other half either,
it closes the sockets of all connections, and all waiting callers get an error.

Some waits are *prompt*: a heartbeat, the check of an idle session, the settings of a session, and
what comes before the first statement on a connection or after the last one. A working server
answers them at once. If new connections are answered and a prompt wait is not, a proxy has lost its
way to the server for the old ones. Then they are closed, too. Any other wait looks like that of a
slow statement. So the server is asked on that new connection what the session of a waiting
operation does. If it has ended, or waits for a command, the request or its answer is lost.

Time is counted in polls of the watchdog. So a process that was suspended, or whose event loop was
blocked, does not blame the database.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event

from queue_over_sql.database.forks import note_heir, shared_lock
from queue_over_sql.database.runtime import LoopProgress
from queue_over_sql.errors import QueueError
from queue_over_sql.sql.driver_calls import sever, watch_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sqlalchemy import Connection, Engine
    from sqlalchemy.pool import ConnectionPoolEntry

    from queue_over_sql.database.runtime import Event, Runtime

    Ask = Callable[[Sequence[Connection], float], list[Connection]]

_log = logging.getLogger(__name__)

# The number of polls until it sends the test query, and from then until it gives up.
_POLLS: Final = 4
# The number of polls after which a prompt wait has lost its connection.
_PROMPT_POLLS: Final = 2 * _POLLS
# The number of polls for which nothing may come or go on a connection until it counts as quiet.
_QUIET_POLLS: Final = 2
# How much longer a connect may take, because drivers have a limit of about this for it themselves.
_CONNECT_SECONDS: Final = 10.0
# On a busy machine even a healthy database may be slow.
_LEAST_SECONDS: Final = 5.0
# The time for the database if the process must stop immediately.
_HURRIED_SECONDS: Final = 0.4
_LEAST_HURRIED_SECONDS: Final = 0.2
# How long interrupted callers may take to end.
_LAST_WORDS_SECONDS: Final = 0.1


@dataclasses.dataclass(eq=False)
class _Question:
    """A test query, the number of answers before it was sent, and the waits that were long then."""

    answers: int
    waits: frozenset[object]
    polls: int = 0
    answered: bool = False


class Watchdog:
    """Knows who waits for the database of one service, and ends waits without an answer.

    Args:
        runtime: how the service waits.
        seconds: how long the database may not answer; at least five seconds.
        ask: sends a test query on a connection of its own; raises if it fails. Of connections on
            which operations wait, it returns those that have been quiet for so many seconds while
            the server works on nothing for them.

    Attributes:
        waits: one object for each caller that waits for an answer now, and the connection on which
            it waits, if it does nothing else.
        prompt_waits: the same, of those that a working database answers at once, with the number of
            polls by which they may last longer.
        answers: how many there were, approximately, because it is counted without a lock.
        gave_up: whether the time of the present ``within`` is over, so that nothing is retried.
        missing: whether it should watch, but no thread could be started.
        progress: of its polls, for health checks.
    """

    def __init__(self, runtime: Runtime, seconds: float, ask: weakref.WeakMethod[Ask]) -> None:
        self.waits: dict[object, Connection | None] = {}
        self.prompt_waits: dict[object, int] = {}
        self.answers = 0
        self.gave_up = False
        self.missing = False
        self.progress = LoopProgress("watchdog")
        self._runtime = runtime
        # The connections know the watchdog, and must not be kept by it.
        self._ask = ask
        self._seconds = max(seconds, _LEAST_SECONDS)
        self._step = self._seconds / (2 * _POLLS + 1)
        # Reentrant, because ``abandon`` is called wherever objects are collected.
        self._lock = shared_lock()
        self._opened: weakref.WeakSet[ConnectionPoolEntry] = weakref.WeakSet()
        self._noted: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._engine: Engine | None = None
        self._ended: Event = runtime.event()
        self._pid: int | None = None
        self._ages: dict[object, int] = {}
        self._prompt_ages: dict[object, int] = {}
        self._question: _Question | None = None
        self._silent_since: int | None = None
        self._hurried_until: float | None = None
        note_heir(self)

    def follow(self, engine: Engine) -> None:
        """Watch all connections that an engine opens from now on, from their first statement."""
        self._engine = engine
        event.listen(engine, "connect", self._connected, insert=True)
        event.listen(engine, "do_execute", self._execute)
        event.listen(engine, "do_executemany", self._execute_many)

    def forked(self) -> None:
        """Forget who waits in the parent: in a child these waits would never end."""
        self.waits.clear()
        self.prompt_waits.clear()

    def note_statements(self, connection: Connection) -> None:
        """From now on each statement on this connection counts as a wait for its answer.

        A handler's transaction is more than such waits, so it is none itself.
        """
        self._noted.add(connection)

    def _execute(self, cursor: Any, statement: Any, parameters: Any, context: Any) -> bool:
        if context.root_connection not in self._noted:
            return False
        with self.waiting(context.root_connection):
            context.dialect.do_execute(cursor, statement, parameters, context)
        return True

    def _execute_many(self, cursor: Any, statement: Any, parameters: Any, context: Any) -> bool:
        if context.root_connection not in self._noted:
            return False
        with self.waiting(context.root_connection):
            context.dialect.do_executemany(cursor, statement, parameters, context)
        return True

    @contextlib.contextmanager
    def waiting(self, connection: Connection | None = None) -> Iterator[None]:
        """Note that the caller waits for answers during the block.

        With a connection, it does nothing else than wait for an answer on this one.
        """
        with _noted(self.waits, connection):
            yield

    def waiting_briefly(
        self, connection: Connection | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Note that a working database lets the caller wait only for a moment during the block.

        With a connection, it does nothing else than wait for an answer on this one.
        """
        return self._promptly(0, connection)

    def connecting(self) -> contextlib.AbstractContextManager[None]:
        """Note that the caller connects, or checks a connection of the pool, during the block."""
        return self._promptly(math.ceil(_CONNECT_SECONDS / self._step), None)

    @contextlib.contextmanager
    def _promptly(self, longer: int, connection: Connection | None) -> Iterator[None]:
        with _noted(self.waits, connection) as wait:
            self.prompt_waits[wait] = longer
            try:
                yield
            finally:
                self.prompt_waits.pop(wait, None)

    def within(self, seconds: float, do: Callable[[], object]) -> bool:
        """Do something within a time limit; returns whether it was done.

        After the limit all connections are closed and the work is abandoned. It runs in the
        background, because nothing can interrupt an attempt to connect.
        """
        if self._hurried_until is not None:
            left = self._hurried_until - time.monotonic()
            seconds = min(seconds, max(_LEAST_HURRIED_SECONDS, left))
        failed: list[BaseException] = []

        def run() -> None:
            try:
                do()
            except BaseException as error:  # noqa: BLE001 - it is raised by who waits
                failed.append(error)
            finally:
                self.gave_up = False

        try:
            running = self._runtime.start("queue-over-sql-end", run)
        except RuntimeError:
            # Since Python 3.12 no thread starts while the interpreter ends.
            do()
            return True
        running.join(seconds)
        if running.is_alive():
            self.gave_up = True
            self.sever()
            running.join(_LAST_WORDS_SECONDS)
        if failed:
            raise failed[0]
        return not running.is_alive()

    def hurry(self) -> None:
        """Limit everything that remains at the end to less than a second.

        A signal handler may call it.
        """
        self._hurried_until = time.monotonic() + _HURRIED_SECONDS

    def stop(self) -> None:
        """Stop watching."""
        self._ended.set()

    def sever(self) -> None:
        """Close all connections: callers that wait on one of them get an error."""
        with self._lock:
            opened = list(self._opened)
        for entry in opened:
            connection = entry.dbapi_connection
            if connection is not None and self._engine is not None:
                sever(self._engine.dialect, connection)

    def abandon(self) -> None:
        """Close the sockets that nobody uses any more, so that no driver waits on one at its end.

        A child leaves alone those that its parent has, too.
        """
        if self._pid != os.getpid() or self._engine is None:
            return
        with self._lock:
            opened = list(self._opened)
        self.sever()
        # A driver of an event loop cannot close a connection here.
        for entry in [] if self._engine.dialect.is_async else opened:
            # Else the pool asks the server to roll back, and logs that it cannot.
            entry.invalidate()

    def poll(self) -> None:
        """Check the waits: send a test query after a long one, and end it if nothing answers."""
        self._ages = _older(self._ages, self.waits)
        self._prompt_ages = {
            wait: self._prompt_ages.get(wait, -longer) + 1
            for wait, longer in list(self.prompt_waits.items())
        }
        if max(self._ages.values(), default=0) <= _POLLS:
            self._question = None
            return
        question = self._question
        if question is None:
            long = frozenset(wait for wait, age in self._ages.items() if age > _POLLS)
            question = _Question(self.answers, long)
            self._runtime.start("queue-over-sql-question", self._put, question)
            # Only now: a question that could not be asked says nothing about the database.
            self._question = question
            return
        question.polls += 1
        silent = not question.answered and self.answers == question.answers
        if silent and question.polls < _POLLS:
            return
        # The other waits have not been asked about: their time goes on.
        self._ages = {wait: age for wait, age in self._ages.items() if wait not in question.waits}
        self._question = None
        if silent:
            _log.log(
                logging.DEBUG if self._silent_since == self.answers else logging.WARNING,
                "The database has not answered for %.0f s, so all connections to it are closed.",
                self._seconds,
            )
            self._silent_since, self._ages = self.answers, {}
            self.sever()
        elif max(self._prompt_ages.values(), default=0) >= _PROMPT_POLLS:
            _log.warning(
                "The database answers, but a connection has heard nothing for %.0f s, so all "
                "connections to it are closed.",
                self._seconds,
            )
            self.sever()

    def _put(self, question: _Question) -> None:
        ask = self._ask()
        if ask is None:
            return
        waiting = {
            wait: connection
            for wait in question.waits
            if (connection := self.waits.get(wait)) is not None
        }
        try:
            lost = ask(list(waiting.values()), _QUIET_POLLS * self._step)
        except QueueError as error:
            _log.debug("The database did not answer a test query: %s", error)
            return
        question.answered = True
        for wait, connection in waiting.items():
            # To ask may take long. A handler that has its answer by now may work on in peace.
            if connection not in lost or wait not in self.waits:
                continue
            gone = connection.closed or connection.invalidated
            raw = None if gone else connection.connection.dbapi_connection
            if raw is not None:
                _log.warning(
                    "A connection has heard nothing for more than %.0f s, and the server works on "
                    "nothing for it, so it is closed.",
                    _QUIET_POLLS * self._step,
                )
                sever(connection.dialect, raw)

    def _connected(self, connection: Any, entry: ConnectionPoolEntry) -> None:
        if self._engine is None or not watch_network(self._engine.dialect, connection):
            return
        with self._lock:
            if self._pid != os.getpid():
                # A forked child has none of its parent's threads, and must leave its sockets alone.
                self._pid = os.getpid()
                self._opened = weakref.WeakSet()
                self._ended = self._runtime.event()
                self.progress, self.missing = LoopProgress("watchdog"), True
            self._opened.add(entry)
        if self.missing:
            self.begin()

    def answered(self) -> None:
        """Note an answer, and start to watch if no thread was free before."""
        self.answers += 1
        if self.missing:
            self.begin()

    def begin(self) -> None:
        """Start to watch, if it is missing; without a free thread a later call tries again."""
        with self._lock:
            if not self.missing:
                return
            late = self.progress.due_at < math.inf
            arguments = weakref.ref(self), self._ended, self._step, self.progress
            try:
                self._runtime.start("queue-over-sql-watchdog", _watch, *arguments)
            except RuntimeError as error:
                if not late:
                    self.progress.due_at = time.monotonic()
                    _log.warning(
                        "The watchdog cannot start, so waits for a silent database have no limit "
                        "until a thread is free: %s",
                        error,
                    )
                return
            self.missing = False


@contextlib.contextmanager
def _noted(
    waits: dict[object, Connection | None], connection: Connection | None = None
) -> Iterator[object]:
    wait = object()
    waits[wait] = connection
    try:
        yield wait
    finally:
        # A forked child knows it no more.
        waits.pop(wait, None)


def _older(ages: dict[object, int], waits: Iterable[object]) -> dict[object, int]:
    return {wait: ages.get(wait, 0) + 1 for wait in list(waits)}


def _watch(
    watchdog: weakref.ref[Watchdog], ended: Event, step: float, progress: LoopProgress
) -> None:
    progress.begin()
    try:
        _look_regularly(watchdog, ended, step, progress)
    finally:
        progress.end()


def _look_regularly(
    watchdog: weakref.ref[Watchdog], ended: Event, step: float, progress: LoopProgress
) -> None:
    while True:
        progress.due_at = time.monotonic() + step
        if ended.wait(step):
            return
        found = watchdog()
        if found is None:
            return
        try:
            found.poll()
        except Exception:  # noqa: BLE001 - the watch must go on
            _log.exception("The watchdog continues after an unexpected error.")
        del found
