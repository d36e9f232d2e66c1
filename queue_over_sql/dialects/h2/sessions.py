"""H2's sessions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlalchemy import Connection, Engine, Table, event
from sqlalchemy.pool import ConnectionPoolEntry

from queue_over_sql.message import Unreadable
from queue_over_sql.sql.driver_calls import driver_connection
from queue_over_sql.sql.sessions import CallersSessions, EngineSessions

# Where a connection's `info` has the number of its session on the server, and when that began.
_SESSION: Final = "queue_over_sql_session"
_OWN: Final = """
    SELECT SESSION_ID, CAST(SESSION_START AS VARCHAR) FROM INFORMATION_SCHEMA.SESSIONS
    WHERE SESSION_ID = SESSION_ID()"""
# Others than administrators see no session but their own.
_IDLE: Final = """
    SELECT (SELECT IS_ADMIN FROM INFORMATION_SCHEMA.USERS WHERE USER_NAME = CURRENT_USER)
           AND NOT EXISTS (SELECT 1 FROM INFORMATION_SCHEMA.SESSIONS
                           WHERE SESSION_ID = {number:d} AND SESSION_STATE <> 'SLEEP'
                             AND SESSION_START = TIMESTAMP WITH TIME ZONE '{began}')"""


def listen(engine: Engine) -> None:
    """Note the session of each connection of one of our engines to a server."""

    def note(connection: Any, entry: ConnectionPoolEntry) -> None:
        try:
            if connection.has_network():
                cursor = connection.cursor()
                entry.info[_SESSION] = cursor.execute(_OWN).fetchone()
                cursor.close()
                # Else whoever uses it first begins with a transaction as old as the connection.
                connection.rollback()
        except BaseException:
            connection.close()
            raise

    event.listen(engine, "connect", note)


class H2Sessions(EngineSessions):
    """Sessions that read any value."""

    def limit_lock_waits(self, connection: Connection, seconds: int) -> str:
        before = connection.exec_driver_sql("SELECT LOCK_TIMEOUT()").scalar_one()
        connection.exec_driver_sql(f"SET LOCK_TIMEOUT {seconds * 1000}").close()
        return f"SET LOCK_TIMEOUT {before}"

    def prepare(self, connection: Connection, *, durable: bool) -> None:
        """Let values that Python cannot hold stand as ``Unreadable``, so that they lose no row."""
        driver_connection(connection).stand_in = Unreadable

    def restore(self, connection: Connection) -> None:
        driver_connection(connection).stand_in = None

    def awaits_command(
        self, asking: Connection, driver: Any, info: Mapping[str, Any], age: float
    ) -> bool:
        """By its number and beginning, because a server that starts counts from one again."""
        session = info.get(_SESSION)
        if session is None:
            return False
        number, began = session
        return bool(asking.exec_driver_sql(_IDLE.format(number=number, began=began)).scalar())


class H2Callers(CallersSessions):
    """Sessions of callers, which may change their schema."""

    @contextlib.contextmanager
    def reading_all(self, connection: Connection) -> Iterator[None]:
        given = driver_connection(connection)
        before, given.stand_in = given.stand_in, Unreadable
        try:
            yield
        finally:
            given.stand_in = before

    def database_identity(self, table: Table) -> str | None:
        """The file; an in-memory database has a name that is unique in its process."""
        # With a schema, tables are named in full, whatever the session's own is.
        where = "" if table.schema else " || ' ' || CURRENT_SCHEMA"
        return f"SELECT COALESCE(DATABASE_PATH(), DATABASE()){where}"

    def moves(self, table: Table) -> bool:
        """By ``SET SCHEMA``."""
        return table.schema is None
