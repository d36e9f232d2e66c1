"""Sessions: connections that stay open between operations, and who uses each of them now."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import threading
import time
import weakref
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from sqlalchemy.exc import SQLAlchemyError

from queue_over_sql.database.forks import shared_lock
from queue_over_sql.sql.compiled import go_direct, run_text
from queue_over_sql.sql.session_changes import release_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sqlalchemy import Connection, Engine


# Seconds between two transactions after which the pool must check a kept connection, and after
# which it is not kept, because the pool may have an age limit of its own.
_LONGEST_PAUSE, _OLDEST = 0.1, 30.0


class KeptConnection:
    """Keeps a connection for the next transaction of the same user, if that is safe.

    It is not safe after a failed transaction or a long pause, or if the connection is old. Nor is
    it if the user set options on the connection or changed its session, or if the service's other
    connections broke meanwhile. Listeners of the user may also want to see each checkout.

    ``briefly`` notes an answer that comes at once: that to the rollback before the pool has it.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        breaks: Callable[[], int],
        briefly: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._connect = connect
        self._breaks = breaks
        self._briefly = briefly
        self._kept: Connection | None = None
        self._seen = 0
        self._opened_at = self._left_at = 0.0
        self._options: Mapping[str, Any] = {}
        # Our own listeners, which do not count.
        self._ours: list[Any] = []

    def take(self) -> Connection:
        """The kept connection, or a new one; ``leave`` or its ``close()`` ends the use."""
        kept, self._kept = self._kept, None
        if kept is not None:
            if self._is_good(kept):
                return kept
            self._discard(kept)
        self._seen = self._breaks()
        self._opened_at = time.monotonic()
        connection = self._connect()
        go_direct(connection, within_transactions=True)
        self._options = connection.get_execution_options()
        return connection

    def leave(self, connection: Connection) -> None:
        """Keep it for the next transaction, or give it back to the pool."""
        release_changed(connection)
        as_it_was = not (connection.closed or connection.invalidated)
        as_it_was = as_it_was and connection.get_execution_options() == self._options
        if as_it_was and not self._is_followed(connection.engine):
            self._kept, self._left_at = connection, time.monotonic()
        else:
            give_back(connection)

    def _is_followed(self, engine: Engine) -> bool:
        # Whether listeners other than ours want to see each checkout or checkin.
        pool: Any = engine.pool.dispatch
        listeners = [*pool.checkout, *pool.checkin, *pool.reset, *engine.dispatch.engine_connect]
        if listeners != self._ours:
            package = __name__.partition(".")[0]
            if any(not str(each.__module__).startswith(f"{package}.") for each in listeners):
                return True
            self._ours = listeners
        return False

    def _is_good(self, kept: Connection) -> bool:
        now = time.monotonic()
        rested = now - self._left_at > _LONGEST_PAUSE or now - self._opened_at > _OLDEST
        broken = kept.closed or kept.invalidated or self._breaks() != self._seen
        return not (rested or broken)

    def close(self) -> None:
        """Give back the kept connection."""
        kept, self._kept = self._kept, None
        if kept is not None:
            self._discard(kept)

    def _discard(self, kept: Connection) -> None:
        if self._breaks() != self._seen:
            # The pool would roll it back, and SQLAlchemy logs an error with a traceback if the
            # server has ended it.
            with contextlib.suppress(SQLAlchemyError):
                kept.invalidate()
        with self._briefly():
            give_back(kept)


@contextlib.contextmanager
def committing(
    connection: Connection,
    waiting: Callable[[Connection], contextlib.AbstractContextManager[None]],
) -> Iterator[Connection]:
    """Commit at the end of the block; after an exception roll back and close the connection.

    ``waiting`` notes that an answer is awaited on a connection.
    """
    try:
        yield connection
        with waiting(connection):
            connection.commit()
    except BaseException:
        try:
            with contextlib.suppress(SQLAlchemyError), waiting(connection):
                connection.rollback()
        finally:
            with waiting(connection):
                give_back(connection)
        raise


def give_back(connection: Connection) -> None:
    """Give a connection back to the pool, or close it if its session is not as it was.

    Raises nothing if it is lost by then, because the work on it is done.
    """
    try:
        release_changed(connection)
        connection.close()
    except SQLAlchemyError:
        # A broken connection refuses even the rollback; one that is invalid is asked nothing.
        with contextlib.suppress(SQLAlchemyError):
            connection.invalidate()
        with contextlib.suppress(SQLAlchemyError):
            connection.close()


@contextlib.contextmanager
def returning(
    connection: Connection, briefly: Callable[[], contextlib.AbstractContextManager[None]]
) -> Iterator[Connection]:
    """Give the connection back at the end of the block, as a wait that ``briefly`` notes."""
    try:
        yield connection
    finally:
        with briefly():
            give_back(connection)


_log = logging.getLogger(__name__)

GIVES_WAY: Final[ContextVar[bool]] = ContextVar("gives_way", default=False)
"""Whether operations of this context give way to those who hold locks."""
# A session that was idle for longer is checked before it is used.
_IDLE_SECONDS = 5.0
# How long the stop of a service waits for a thread that uses its connection.
_CLOSE_SECONDS = 1.0
# How many sessions of ended threads are kept for the next ones.
_MOST_LEFT = 8


class Session:
    """One long-held connection, and its present user.

    Args:
        connection: the connection, which is set up.
        checking: notes that a statement on a connection waits, which a working server answers at
            once.
        restore: undoes its settings.
        seconds: how old it may become.

    Attributes:
        depth: how many operations of its user run on it now, one inside the other.
        unwanted: whether it is to be closed as soon as its user is ready.
    """

    def __init__(
        self,
        connection: Connection,
        checking: Callable[[Connection], contextlib.AbstractContextManager[None]],
        restore: Callable[[Connection], None] | None = None,
        seconds: float = math.inf,
    ) -> None:
        self.connection = connection
        self._checking = checking
        self.depth = 0
        self.unwanted = False
        self.made_at = time.monotonic()
        # Spread, so that not all connect at the same moment.
        self._ends_at = self.made_at + seconds * random.uniform(0.9, 1.1)  # noqa: S311
        # Undoes the session's settings, so that the pool can lend the connection to anybody.
        self._restore = restore
        self.lock = threading.RLock()
        self._closed = False
        self.used_at = self.made_at
        # Undoes its limit on waits for locks; None while it has none.
        self._unlimited: str | None = None

    def limit_lock_waits(self, limit: Callable[[Connection], str]) -> None:
        """Let it wait for locks only briefly, by ``limit``, while its users give way."""
        if self._unlimited is None:
            self._unlimited = limit(self.connection)

    def _wait_as_before(self) -> None:
        undo, self._unlimited = self._unlimited, None
        if undo:
            with self._checking(self.connection):
                run_text(self.connection, undo)

    def alive(self) -> bool:
        """Whether the connection works; it asks the server if the session was idle."""
        if not self.usable:
            return False
        if not self.depth and (self.unwanted or self.is_old):
            self.unwanted = True
            return False
        try:
            if self._unlimited is not None and not GIVES_WAY.get():
                self._wait_as_before()
            if time.monotonic() - self.used_at >= _IDLE_SECONDS:
                with self._checking(self.connection):
                    self.connection.exec_driver_sql("SELECT 1").close()
        except SQLAlchemyError:
            return False
        except BaseException:
            # Its caller was interrupted, and nobody else knows this session now.
            self.drop()
            raise
        return True

    @property
    def is_old(self) -> bool:
        """Whether it is older than a session of this engine may become."""
        return time.monotonic() > self._ends_at

    @property
    def usable(self) -> bool:
        """Whether the connection is intact as far as this side knows."""
        return not (self._closed or self.connection.closed or self.connection.invalidated)

    def close(self) -> None:
        """Give the connection back to the pool, once; the user of a busy one closes it later.

        A broken one is only forgotten.
        """
        if not self.lock.acquire(timeout=_CLOSE_SECONDS):
            self.unwanted = True
            return
        try:
            if not self._closed:
                self._closed = True
                self._give_back()
        except Exception as error:  # noqa: BLE001 - drivers raise what they like on a dead socket
            _log.debug("A connection could not be returned to the pool: %s", error)
        finally:
            self.lock.release()

    def drop(self) -> None:
        """Close the connection itself, which nobody may use again."""
        with contextlib.suppress(SQLAlchemyError):
            self.connection.invalidate()
        self.close()

    def _give_back(self) -> None:
        broken = self.connection.closed or self.connection.invalidated
        if self.unwanted and not broken:
            # It leads to a server that is left, or is too old for anybody.
            self.connection.invalidate()
            broken = True
        try:
            if not broken:
                self._wait_as_before()
            if self._restore is not None and not broken:
                with self._checking(self.connection):
                    self._restore(self.connection)
        except BaseException:
            self.connection.invalidate()
            raise
        finally:
            # The pool rolls it back.
            with self._checking(self.connection):
                self.connection.close()


class Sessions(Protocol):
    """The long-held connections of a service, each lent to one caller at a time."""

    def borrow(self, *, durable: bool) -> Session:
        """Lend a session to the caller until ``give_back``; nested calls get the same one."""

    def give_back(self, session: Session) -> None:
        """End the use that ``borrow`` began."""

    def drain(self, seconds: float) -> None:
        """Wait until others have given back their sessions, at most this long."""

    def renew(self) -> None:
        """Let each user open a new session for its next operation."""

    def close(self) -> None:
        """Close all sessions that nobody uses; the others are closed after their operation."""


class SessionsOfThread:
    """The sessions of one thread. Their owner keeps them, too, and lends them on after its end.

    The owner notices the end by a weak reference, not by ``__del__``. An exception may hold this
    object in a reference cycle, which the garbage collector ends. For connections in such a cycle,
    it calls the finalizers of SQLAlchemy before any ``__del__``. Then the pool would lend these
    connections, and so would we: an ack of one user would be in the transaction of another.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.sessions: dict[bool, Session] = {}


def _drop(sessions: Iterable[Session]) -> None:
    for session in list(sessions):
        session.drop()


class ThreadSessions:
    """Gives each thread sessions of its own; when it ends, others may use them.

    They are not closed then. To close one asks the server, and if that does not answer, the thread
    that notices the end would wait. When the service is collected, too, the connections are closed
    without asking the server.
    """

    def __init__(self, make: Callable[[bool], Session], forked: Callable[[], None]) -> None:
        self._make = make
        self._forked = forked
        self._local = threading.local()
        self._kept: dict[weakref.ref[SessionsOfThread], dict[bool, Session]] = {}
        self._ended = _noticed_by(weakref.ref(self))
        self._lock = shared_lock()
        self._pid = os.getpid()
        # The sessions of ended threads.
        self._left: deque[tuple[bool, Session]] = deque()
        # A forked child keeps them forever. To free them would send a rollback through the sockets
        # that the parent still uses.
        self._inherited: list[object] = []

    def __del__(self) -> None:
        if self._pid == os.getpid():
            _drop(self._all())

    def borrow(self, *, durable: bool) -> Session:
        """The thread's own session, checked if it was idle."""
        sessions = getattr(self._local, "sessions", None)
        if sessions is None or sessions.pid != os.getpid():
            sessions = self._new_thread()
        session: Session | None = sessions.sessions.get(durable)
        if session is None or not session.alive():
            if session is not None:
                session.close()
            session = sessions.sessions[durable] = self._next(durable=durable)
        elif len(self._left) > _MOST_LEFT:
            self._close_one_left()
        session.lock.acquire()
        session.depth += 1
        return session

    def give_back(self, session: Session) -> None:
        """Let other threads close the session."""
        session.depth -= 1
        session.lock.release()
        if session.unwanted and not session.depth:
            session.close()

    def leave(self, ended: weakref.ref[SessionsOfThread]) -> None:
        """Let others use the sessions of an ended thread; called wherever objects are collected."""
        if self._pid == os.getpid():
            sessions = self._kept.pop(ended, {})
            self._left.extend(each for each in sessions.items() if each[1].usable)

    def drain(self, seconds: float) -> None:
        """Wait for the operations of other threads."""
        deadline = time.monotonic() + seconds
        for session in self._own():
            if session.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                session.lock.release()

    def renew(self) -> None:
        """Let each thread open a new session for its next operation."""
        for session in self._own():
            session.unwanted = True

    def close(self) -> None:
        """Close the sessions of all threads of this process."""
        for session in self._own():
            session.close()

    def _own(self) -> list[Session]:
        with self._lock:
            return self._all() if self._pid == os.getpid() else []

    def _all(self) -> list[Session]:
        kept = [session for each in list(self._kept.values()) for session in list(each.values())]
        return [session for _, session in list(self._left)] + kept

    def _next(self, *, durable: bool) -> Session:
        """A session of an ended thread, or a new one."""
        for _ in range(len(self._left)):
            try:
                kind, session = self._left.popleft()
            except IndexError:  # another thread was quicker
                break
            if kind != durable:
                self._left.append((kind, session))
            elif session.alive():
                return session
            else:
                session.close()
        return self._make(durable)

    def _close_one_left(self) -> None:
        with contextlib.suppress(IndexError):
            _, session = self._left.popleft()
            session.unwanted = True
            session.close()

    def _new_thread(self) -> SessionsOfThread:
        with self._lock:
            if self._pid != os.getpid():
                self._forked()
                self._pid = os.getpid()
                self._inherited += self._left, self._kept
                self._left, self._kept = deque(), {}
        inherited = getattr(self._local, "sessions", None)
        if inherited is not None:
            self._inherited.append(inherited)
        sessions = self._local.sessions = SessionsOfThread()
        with self._lock:
            self._kept[weakref.ref(sessions, self._ended)] = sessions.sessions
        return sessions


def _noticed_by(
    owner: weakref.ref[ThreadSessions],
) -> Callable[[weakref.ref[SessionsOfThread]], None]:
    def ended(thread: weakref.ref[SessionsOfThread]) -> None:
        found = owner()
        if found is not None:
            found.leave(thread)

    return ended


class SharedSession:
    """One session for all callers, for a database that exists only in its connection.

    Attributes:
        using: a lock for all uses of the connection, including those outside of the session.
    """

    def __init__(self, make: Callable[[bool], Session], lock: Callable[[], Any]) -> None:
        self._make = make
        self._making = lock()
        self.using = lock()
        self._session: Session | None = None

    def borrow(self, *, durable: bool) -> Session:
        """The session, when all others have given it back."""
        del durable
        self.using.acquire()
        try:
            return self._opened()
        except BaseException:
            self.using.release()
            raise

    def give_back(self, session: Session) -> None:
        """Lend it to the next caller."""
        del session
        self.using.release()

    def drain(self, seconds: float) -> None:
        """Wait for the operation of another caller."""
        if self.using.acquire(timeout=seconds):
            self.using.release()

    def renew(self) -> None:
        """Keep it, because its database ends with it."""

    def close(self) -> None:
        """Close it."""
        if self._session is not None:
            self._session.close()

    def _opened(self) -> Session:
        with self._making:
            if self._session is None:
                self._session = self._make(True)  # noqa: FBT003 - there is no other kind
            return self._session
