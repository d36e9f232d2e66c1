"""The sessions of MySQL and MariaDB, which must be strict."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table
from sqlalchemy.exc import SQLAlchemyError

from queue_over_sql.dialects.mysql.hooks import EVERY_CHARACTER, OPENED_WITH, SETTINGS
from queue_over_sql.sql.compiled import run_text
from queue_over_sql.sql.driver_calls import driver_connection
from queue_over_sql.sql.sessions import CallersSessions, EngineSessions

# What lets a server only read, and a session; the second has one name on each server.
_SERVER_READS: Final = ("read_only", "super_read_only", "innodb_read_only")
_SESSION_READS: Final = ("transaction_read_only", "tx_read_only")
# How long a session waits for a row and for a table, and the variables that keep the user's limits.
_LIMITS: Final = {
    "innodb_lock_wait_timeout": "@queue_over_sql_row",
    "lock_wait_timeout": "@queue_over_sql_table",
}


class MySQLSessions(EngineSessions):
    """Sessions that are strict, and delete without a key in the condition."""

    def prepare(self, connection: Connection, *, durable: bool) -> None:
        """Be strict, and delete without a key in the condition."""
        before = _settings_to_change(connection.info.get(OPENED_WITH))
        if before is not None:
            _change_settings(connection, _strict(before[0]), 0)

    def restore(self, connection: Connection) -> None:
        """A handler's transaction has the settings of the server or the engine."""
        before = _settings_to_change(connection.info.get(OPENED_WITH))
        if before is not None:
            _change_settings(connection, *before)

    def begin(self, connection: Connection) -> None:
        run_text(connection, "START TRANSACTION")

    def limit_lock_waits(self, connection: Connection, seconds: int) -> str:
        """For rows and for tables; the session keeps its former limits in variables."""
        kept = ", ".join(f"{kept} = @@SESSION.{name}" for name, kept in _LIMITS.items())
        limits = ", ".join(f"SESSION {name} = {seconds}" for name in _LIMITS)
        run_text(connection, f"SET {kept}, {limits}")
        return "SET " + ", ".join(f"SESSION {name} = {kept}" for name, kept in _LIMITS.items())

    def server_reads_only(self, connection: Connection) -> bool:
        return self._is_on(connection, "GLOBAL", *_SERVER_READS, *_SESSION_READS)

    def reading_setting(self, connection: Connection) -> str | None:
        if not self._is_on(connection, "SESSION", *_SESSION_READS):
            return None
        return (
            "Transactions of this login are READ ONLY by default. Remove what sets this when a "
            "connection opens, such as init_connect of the server or init_command of the URL."
        )

    @staticmethod
    def _is_on(connection: Connection, scope: str, *names: str) -> bool:
        wanted = ", ".join(f"'{name}'" for name in names)
        asked = f"SHOW {scope} VARIABLES WHERE variable_name IN ({wanted})"
        return any(value not in {"OFF", "0"} for _, value in connection.exec_driver_sql(asked))


class MySQLCallers(CallersSessions):
    """Sessions of callers, which are made strict for our statements."""

    name_query = "SELECT DATABASE()"

    def database_identity(self, table: Table) -> str | None:
        """The database of one server, identified by host, port and data directory."""
        # With a schema, tables are named in full, whatever the session's default is.
        where = "''" if table.schema else "COALESCE(DATABASE(), '')"
        return f"SELECT CONCAT_WS(' ', @@hostname, @@port, @@datadir, {where}), {SETTINGS}"

    def moves(self, table: Table) -> bool:
        """After ``USE``, and other settings count for each use, too."""
        return True

    def check(self, connection: Connection) -> None:
        if not getattr(driver_connection(connection), "use_unicode", True):
            msg = "connection= gives bytes for texts: open it without use_unicode=False."
            raise ValueError(msg)

    @contextlib.contextmanager
    def respecting(
        self, connection: Connection, settings: Sequence[Any] | None = None
    ) -> Iterator[None]:
        """Be strict during the block, or texts are cut and numbers changed without an error.

        Raises:
            ValueError: the connection cannot send every character.
        """
        opened = connection.info.get(OPENED_WITH) if settings is None else settings
        if opened is not None and opened[0] != EVERY_CHARACTER:
            msg = (
                "connection= cannot send and receive every character, and would store others as "
                f"'?': its character sets are {opened[0]}. Open it with charset=utf8mb4."
            )
            raise ValueError(msg)
        before = _settings_to_change(opened)
        if before is None:
            yield
            return
        _change_settings(connection, _strict(before[0]), 0)
        try:
            yield
        finally:
            # A lost connection has no settings to restore.
            with contextlib.suppress(SQLAlchemyError):
                _change_settings(connection, *before)


def _settings_to_change(settings: Sequence[Any] | None) -> tuple[str, int] | None:
    """The mode and the caution of a session; None if our statements can run with them."""
    if settings is None:
        return None
    _, mode, cautious = settings
    is_strict = {"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"} & set(mode.split(","))
    return None if is_strict and not cautious else (mode, int(cautious))


def _strict(mode: str) -> str:
    return f"{mode},STRICT_TRANS_TABLES" if mode else "STRICT_TRANS_TABLES"


def _change_settings(connection: Connection, mode: str, cautious: int) -> None:
    change = f"SET SESSION sql_mode = '{mode}', SESSION sql_safe_updates = {cautious}"
    connection.exec_driver_sql(change).close()
