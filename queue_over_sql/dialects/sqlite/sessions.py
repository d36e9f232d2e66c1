"""SQLite's sessions: one writer at a time, so writing operations are short and IMMEDIATE."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Table, Update, false, literal_column, update

from queue_over_sql.dialects.sqlite.files import MAIN_FILE
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.sql.compiled import StatementCache, run_text
from queue_over_sql.sql.driver_calls import driver_connection, read_any_text
from queue_over_sql.sql.sessions import CallersSessions, EngineSessions

# Drivers whose connections several threads can use at once.
_SERIALIZED = 3


class SQLiteSessions(EngineSessions):
    """Sessions that take the write lock before they read what they will change."""

    def prepare(self, connection: Connection, *, durable: bool) -> None:
        """A publish waits for the disk; losing a claim or ack only causes a redelivery."""
        connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        driver_connection(connection).text_factory = read_any_text

    def restore(self, connection: Connection) -> None:
        """Let others have the driver's error for a text that is not UTF-8."""
        driver_connection(connection).text_factory = str

    def begin(self, connection: Connection) -> None:
        """Take the write lock at once, because a lock taken after a read may fail for good."""
        run_text(connection, "BEGIN IMMEDIATE")

    def break_off(self, connection: Connection) -> None:
        """Roll it back here, because there is no server, and block the connection.

        Otherwise the user's next statements would be committed one by one.
        """
        raw: Any = connection.connection.dbapi_connection
        if connection.dialect.loaded_dbapi.threadsafety != _SERIALIZED:
            return
        raw.set_authorizer(_only_rollback)
        raw.interrupt()
        raw.rollback()

    def lock_for_writing(self, connection: Connection, sql: StatementCache) -> None:
        """A write without effect, because a lock taken after a read may fail for good."""
        sql.get(write_nothing).run(connection)

    def lock_database(self, connection: Connection, table: Table) -> None:
        column = next(iter(table.c))
        connection.execute(update(table).where(false()).values({column: column}))


class SQLiteCallers(CallersSessions):
    """Connections of callers, each to a file."""

    name_query = MAIN_FILE

    def database_identity(self, table: Table) -> str | None:
        """The file; an in-memory database has none, and belongs to one connection."""
        return MAIN_FILE

    @contextlib.contextmanager
    def reading_all(self, connection: Connection) -> Iterator[None]:
        given = driver_connection(connection)
        before, given.text_factory = given.text_factory, read_any_text
        try:
            yield
        finally:
            given.text_factory = before


def _only_rollback(action: int, first: str | None, *_: object) -> int:
    ends = action == sqlite3.SQLITE_TRANSACTION and first == "ROLLBACK"
    return sqlite3.SQLITE_OK if ends else sqlite3.SQLITE_DENY


def write_nothing(tables: QueueTables) -> Update:
    """Take the write lock."""
    return update(tables.live).where(literal_column("1") == literal_column("0")).values(priority=0)
