"""H2's sessions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import Connection, Table

from queue_over_sql.message import Unreadable
from queue_over_sql.sql.driver_calls import driver_connection
from queue_over_sql.sql.sessions import CallersSessions, EngineSessions


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
