"""Hooks of our engines on SQLite, for drivers of threads and of an event loop."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.pool import ConnectionPoolEntry

from queue_over_sql.database.write_lock import WriteLock
from queue_over_sql.dialects.sqlite.forks import refuse_inherited

# A hook begins SQLite's transactions, except on connections with this mark.
SESSION_MARK: Final = "queue_over_sql_session"
_TIMEOUT = 30.0
# The first connection of all changes the file, which a transaction of the caller's may prevent.
_FIRST_TIMEOUT = 10.0
LOG_BYTES: Final = 16 * 2**20
"""The largest size of the write-ahead log when nobody reads it; SQLite aims at 4 MiB."""


FILES: Final = "queue_over_sql_files"
"""Where a connection's information has the files that it opened."""
FileId = tuple[int, int]


def file_id(file: str) -> FileId | None:
    """Device and inode of a file; None if there is none."""
    try:
        found = os.stat(file)  # noqa: PTH116 - a path object takes as long again
    except OSError:
        return None
    return found.st_dev, found.st_ino


class SQLiteHooks:
    """Sets up each connection, and begins transactions with the write lock.

    Transactions of handlers first wait for ``write_lock``.
    """

    def __init__(self, pause: Callable[[float], None], write_lock: WriteLock) -> None:
        self._pause = pause
        self._write_lock = write_lock

    def listen(self, engine: Engine) -> None:
        event.listen(engine, "connect", self.configure)
        event.listen(engine, "checkout", self.wait_for_the_disk)
        event.listen(engine, "begin", self.begin_immediate)
        event.listen(engine, "handle_error", self.let_go)

    def configure(self, connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        """Use autocommit by default, and WAL, so that readers and the writer run together."""
        try:
            connection.isolation_level = None
            file = _file_of(connection)
            refuse_inherited(file)
            change = "PRAGMA journal_mode=WAL"
            self._until_timeout(lambda: _execute(connection, change), _FIRST_TIMEOUT)
            # Shrink the log when it restarts, after a long reader made it grow.
            _execute(connection, f"PRAGMA journal_size_limit={LOG_BYTES}")
            # From now on nobody may remove the log, which the change to WAL has opened.
            files = [file, f"{file}-wal"] if file else []
            entry.info[FILES] = {each: found for each in files if (found := file_id(each))}
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
            self._until_timeout(lambda: _execute(raw, "BEGIN IMMEDIATE"))

    def let_go(self, context: ExceptionContext) -> None:
        """End a statement whose caller was interrupted.

        Otherwise it would keep its lock, even after its connection is closed, for as long as
        anybody holds the exception.
        """
        cursor = getattr(context.execution_context, "cursor", None)
        if cursor is not None and not isinstance(context.original_exception, Exception):
            cursor.close()

    def _until_timeout(self, do: Callable[[], None], seconds: float = _TIMEOUT) -> None:
        """Repeat while another connection has the lock, with our own short, random pauses."""
        deadline = time.monotonic() + seconds
        longest = 0.0005
        while True:
            try:
                do()
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
                if not busy or time.monotonic() > deadline:
                    raise
                # Jitter spreads the writers; it guards nothing. Most have the lock very briefly.
                self._pause(random.uniform(0.0001, longest))  # noqa: S311
                longest = min(2 * longest, 0.01)
            else:
                return


def _file_of(connection: DBAPIConnection) -> str:
    cursor = connection.cursor()
    try:
        cursor.execute("PRAGMA database_list")
        return str(cursor.fetchall()[0][2])
    finally:
        cursor.close()


def _execute(connection: DBAPIConnection, statement: str) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
    finally:
        cursor.close()
