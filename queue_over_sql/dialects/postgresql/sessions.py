"""PostgreSQL's sessions, which a pooler may share among its clients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import SQLAlchemyError

from queue_over_sql.dialects.postgresql.plain_values import read_otherwise
from queue_over_sql.dialects.postgresql.pooler import Pooler
from queue_over_sql.sql.compiled import direct_calls, run_text
from queue_over_sql.sql.driver_calls import driver_connection, read_all_values, read_values_as_usual
from queue_over_sql.sql.features import Features
from queue_over_sql.sql.sessions import CallersSessions, EngineSessions

# A disabled plan looks so expensive that the server would compile it, which takes 0.1 s.
_BY_INDEX = "SET enable_seqscan = off; SET enable_sort = off; SET jit = off"
_AS_USUAL = "RESET enable_seqscan; RESET enable_sort; RESET jit"
_READS_ONLY: Final = """
    SELECT pg_is_in_recovery(), setting, source
    FROM pg_settings WHERE name = 'default_transaction_read_only'"""
# After a step of the server's clock nothing is known.
_IDLE: Final = """
    SELECT pg_backend_pid() = {own} AND NOT EXISTS (
        SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND NOT (
            coalesce(left(state, 4) = 'idle', false)
            AND abs(extract(epoch FROM clock_timestamp() - backend_start) - {age:.3f}) < 5))"""
_TURN_OFF: Final = "SET default_transaction_read_only = off."
# Where a setting comes from that is not the whole server's, and how to undo it.
_OF_LOGINS: Final = {
    "user": f"Turn it off: ALTER ROLE … {_TURN_OFF}",
    "database": f"Turn it off: ALTER DATABASE … {_TURN_OFF}",
    "database user": f"Turn it off: ALTER ROLE … IN DATABASE … {_TURN_OFF}",
    "client": "Remove it from the options of the URL or engine, or from PGOPTIONS.",
    "session": "Remove what sets it when a connection opens.",
}


class PostgreSQLSessions(EngineSessions):
    """Sessions that plan along indexes.

    Args:
        features: of the server.
        pooler: between this service and the server.
    """

    def __init__(self, features: Features, pooler: Pooler) -> None:
        super().__init__(features)
        self._pooler = pooler

    def notice_pooler(self, connection: Connection) -> None:
        self._pooler.notice(connection)

    def prepare(self, connection: Connection, *, durable: bool) -> None:
        """Allow only plans along an index, because the server keeps prepared plans.

        A plan from when the queue was nearly empty reads and sorts the whole table until the next
        ANALYZE: after a burst of 200,000 messages a claim took 110 ms instead of 0.4. Planning each
        run (``plan_cache_mode``) would halve the rate of single messages. Behind a pooler that
        shares sessions nothing is set, because the next client would get the settings.
        """
        if self._plans_by_index(connection):
            run_text(connection, _BY_INDEX)
        if connection.dialect.driver == "psycopg":
            read_all_values(driver_connection(connection))

    def restore(self, connection: Connection) -> None:
        """Restore the planning and the reading of values for other users."""
        if connection.dialect.driver == "psycopg":
            read_values_as_usual(driver_connection(connection))
        if self._plans_by_index(connection):
            run_text(connection, _AS_USUAL)

    def begin(self, connection: Connection) -> None:
        """At READ COMMITTED, because what is read after a lock must be newer than the lock."""
        run_text(connection, "BEGIN ISOLATION LEVEL READ COMMITTED")

    @contextlib.contextmanager
    def scanning(self, connection: Connection) -> Iterator[None]:
        if direct_calls(connection) is None or not self._plans_by_index(connection):
            yield
            return
        run_text(connection, _AS_USUAL)
        try:
            yield
        finally:
            # A failed transaction accepts no settings; its end undoes them.
            with contextlib.suppress(SQLAlchemyError):
                run_text(connection, _BY_INDEX)

    def _plans_by_index(self, connection: Connection) -> bool:
        return not self._pooler.shares_sessions and _prepares(connection)

    @property
    def keeps_settings(self) -> bool:
        return not self._pooler.shares_sessions

    def limit_lock_waits(self, connection: Connection, seconds: int) -> str:
        local = "" if self.keeps_settings else "LOCAL "
        run_text(connection, f"SET {local}lock_timeout = '{seconds}s'")
        return "RESET lock_timeout" if self.keeps_settings else ""

    def awaits_command(
        self, asking: Connection, driver: Any, info: Mapping[str, Any], age: float
    ) -> bool:
        """By its process, which began when it was opened; a pooler gives other numbers."""
        own, pid = _process(driver_connection(asking)), _process(driver)
        return bool(asking.exec_driver_sql(_IDLE.format(own=own, pid=pid, age=age)).scalar())

    def server_reads_only(self, connection: Connection) -> bool:
        """In recovery, or by its configuration, as some services set it on a full disk."""
        in_recovery, value, source = connection.exec_driver_sql(_READS_ONLY).one()
        return in_recovery or (value == "on" and source not in _OF_LOGINS)

    def reading_setting(self, connection: Connection) -> str | None:
        """``default_transaction_read_only``, and where it is set."""
        _, value, source = connection.exec_driver_sql(_READS_ONLY).one()
        if value != "on" or source not in _OF_LOGINS:
            return None
        return (
            "The setting default_transaction_read_only is on for this login, set for the "
            f"{source}. {_OF_LOGINS[source]}"
        )


def _process(driver: Any) -> int:
    """The server's process of a connection; a pooler makes numbers up."""
    known = getattr(driver, "info", None)
    return int(driver.get_server_pid() if known is None else known.backend_pid)


class PostgreSQLCallers(CallersSessions):
    """Sessions of callers, perhaps behind a pooler, too."""

    name_query = "SELECT current_database()"

    def __init__(self, pooler: Pooler) -> None:
        self._pooler = pooler

    def check(self, connection: Connection) -> None:
        self._pooler.check(connection)
        if connection.dialect.driver != "psycopg":
            return
        if odd := read_otherwise(driver_connection(connection)):
            msg = (
                f"connection= reads {', '.join(odd)} as other types than int and str, so the queue "
                "cannot compare them. Register your loaders on cursors instead of the connection; "
                "where texts are bytes, open it with client_encoding=utf8."
            )
            raise ValueError(msg)

    def database_identity(self, table: Table) -> str | None:
        """The database, the server's start time in microseconds, and the table."""
        return _identity_of(table.schema, table.name)

    def moves(self, table: Table) -> bool:
        """By its ``search_path``."""
        return table.schema is None

    @contextlib.contextmanager
    def reading_all(self, connection: Connection) -> Iterator[None]:
        if connection.dialect.driver != "psycopg" or direct_calls(connection) is not None:
            yield
            return
        read_all_values(driver_connection(connection))
        try:
            yield
        finally:
            read_values_as_usual(driver_connection(connection))


@functools.lru_cache(maxsize=1000)
def _identity_of(schema: str | None, table: str) -> str:
    # Each use of a caller's connection needs it.
    preparer = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
    name = preparer.quote(table)
    if schema is not None:
        name = f"{preparer.quote_schema(schema)}.{name}"
    name = name.replace("'", "''")
    return (
        "SELECT current_database() || ' ' || EXTRACT(EPOCH FROM pg_postmaster_start_time())"
        f" || ' ' || COALESCE(CAST(to_regclass('{name}') AS oid), 0)"
    )


def _prepares(connection: Connection) -> bool:
    driver = driver_connection(connection) if connection.dialect.driver == "psycopg" else None
    return getattr(driver, "prepare_threshold", None) is not None
