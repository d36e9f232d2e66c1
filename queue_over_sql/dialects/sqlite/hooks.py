"""Hooks of our engines on SQLite, and the lock for which writers in threads wait first."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.pool import ConnectionPoolEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection


# A hook begins SQLite's transactions, except on connections with this mark.
SESSION_MARK: Final = "queue_over_sql_session"
_PATIENCE = 30.0
# The first connection of all changes the file, which a transaction of the caller's may prevent.
_PATIENCE_AT_FIRST = 10.0
# Who waited for the process's lock for longer asks SQLite all the same.
_LOCK_PATIENCE = 0.01
LOG_BYTES: Final = 16 * 2**20
"""The largest size of the write-ahead log when nobody reads it; SQLite aims at 4 MiB."""


class SQLiteHooks:
    """Sets up each connection, and begins transactions with the write lock.

    ``write_lock`` is the one for which transactions of handlers wait before.
    """

    def __init__(self, pause: Callable[[float], None], write_lock: WriteLock) -> None:
        self._pause = pause
        self._write_lock = write_lock

    def listen(self, engine: Engine) -> None:
        event.listen(engine, "connect", self.configure)
        event.listen(engine, "checkout", self.wait_for_the_disk)
        event.listen(engine, "begin", self.begin_immediate)
        event.listen(engine, "handle_error", self.let_go)

    def configure(self, connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        """Use autocommit by default, and WAL, so that readers and the writer run together."""
        try:
            connection.isolation_level = None
            change = "PRAGMA journal_mode=WAL"
            self._patiently(lambda: _execute(connection, change), _PATIENCE_AT_FIRST)
            # Shrink the log when it restarts, after a long reader made it grow.
            _execute(connection, f"PRAGMA journal_size_limit={LOG_BYTES}")
        except BaseException:
            connection.close()
            raise

    def wait_for_the_disk(self, connection: DBAPIConnection, *_: object) -> None:
        """Full durability for each new user of a connection; sessions of claims lower their own."""
        _execute(connection, "PRAGMA synchronous=FULL")

    def begin_immediate(self, connection: Connection) -> None:
        """Take the write lock at once, because a lock taken after a read may fail for good."""
        if not connection.get_execution_options().get(SESSION_MARK):
            raw: Any = connection.connection.dbapi_connection
            self._write_lock.acquire(connection)
            self._patiently(lambda: _execute(raw, "BEGIN IMMEDIATE"))

    def let_go(self, context: ExceptionContext) -> None:
        """End a statement whose caller was interrupted.

        Otherwise it would keep its lock, even after its connection is closed, for as long as
        anybody holds the exception.
        """
        cursor = getattr(context.execution_context, "cursor", None)
        if cursor is not None and not isinstance(context.original_exception, Exception):
            cursor.close()

    def _patiently(self, act: Callable[[], None], seconds: float = _PATIENCE) -> None:
        """Repeat while another connection has the lock, with our own short, random pauses."""
        deadline = time.monotonic() + seconds
        longest = 0.0005
        while True:
            try:
                act()
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
                if not busy or time.monotonic() > deadline:
                    raise
                # Jitter spreads the writers; it guards nothing. Most have the lock very briefly.
                self._pause(random.uniform(0.0001, longest))  # noqa: S311
                longest = min(2 * longest, 0.01)
            else:
                return


def _execute(connection: DBAPIConnection, statement: str) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
    finally:
        cursor.close()


class WriteLock:
    """Lets threads write one after another.

    SQLite does not wake a thread that waits for its lock: the thread must sleep and ask again, and
    meanwhile the lock may be free. This lock only advises, because SQLite's own lock guards. So a
    thread that keeps it for long delays the others, but does not stop them.
    """

    wakes: ClassVar[bool] = True
    """Whether the next writer is woken, so that it need not sleep before it asks again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Connections whose transactions ask for the lock, and the one whose transaction has it.
        self._asking: set[Connection] = set()
        self._having: set[Connection] = set()

    def register(self, connection: Connection) -> None:
        """Let the transactions of a connection ask for the lock, until ``release``."""
        self._asking.add(connection)

    def acquire(self, connection: Connection) -> None:
        """Wait for the lock, for a transaction that begins."""
        waits = connection in self._asking and connection not in self._having
        if waits and self._lock.acquire(timeout=_LOCK_PATIENCE):
            self._having.add(connection)

    def release(self, connection: Connection) -> None:
        """Release what a connection has; another thread may do that, too."""
        self._asking.discard(connection)
        try:
            # Only one of two threads can remove it.
            self._having.remove(connection)
        except KeyError:
            return
        self._lock.release()

    @contextlib.contextmanager
    def one_act(self) -> Iterator[None]:
        """Wait for the lock, for one act."""
        lock = self._lock
        acquired = lock.acquire(timeout=_LOCK_PATIENCE)
        try:
            yield
        finally:
            if acquired:
                lock.release()

    def forked(self) -> None:
        """Forget the threads of the parent process, which do not exist here."""
        self._lock = threading.Lock()
        self._asking.clear()
        self._having.clear()


class NoWriteLock(WriteLock):
    """For a database whose writers need not wait for each other here: it does nothing."""

    wakes = False

    def register(self, connection: Connection) -> None:
        """Do nothing."""

    def acquire(self, connection: Connection) -> None:
        """Do nothing."""

    def release(self, connection: Connection) -> None:
        """Do nothing."""

    @contextlib.contextmanager
    def one_act(self) -> Iterator[None]:
        """Do nothing."""
        yield
