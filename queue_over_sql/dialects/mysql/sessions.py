"""The sessions of MySQL and MariaDB, which must be strict."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard

from sqlalchemy import Connection, Table
from sqlalchemy.exc import SQLAlchemyError

from queue_over_sql.dialects.mysql.hooks import EVERY_CHARACTER, OPENED_WITH, SESSION, SETTINGS
from queue_over_sql.sql.compiled import run_text
from queue_over_sql.sql.driver_calls import driver_connection
from queue_over_sql.sql.sessions import CallersSessions, EngineSessions

# What lets a server only read, and a session; the second has one name on each server.
_SERVER_READS: Final = ("read_only", "super_read_only", "innodb_read_only")
_SESSION_READS: Final = ("transaction_read_only", "tx_read_only")
# In what SHOW CREATE DATABASE says; MariaDB has no such schemas.
_READ_ONLY: Final = re.compile(r"/\* READ ONLY ?= ?1 \*/")
# How long a session waits for a row and for a table, and the variables that keep the user's limits.
_LIMITS: Final = {
    "innodb_lock_wait_timeout": "@queue_over_sql_row",
    "lock_wait_timeout": "@queue_over_sql_table",
}
# Modes in which our texts are stored as something else: '' becomes NULL, on MariaDB.
_MISREAD: Final = frozenset({"EMPTY_STRING_IS_NULL"})
# The names of SETTINGS after the character sets and the mode, with what our statements need: to
# delete without a key in the condition, to see every row, and to read a large queue.
_NEEDED: Final = {"sql_safe_updates": 0, "sql_select_limit": 2**64 - 1, "sql_big_selects": 1}


class MySQLSessions(EngineSessions):
    """Sessions that are strict, and read and delete any number of rows."""

    def prepare(self, connection: Connection, *, durable: bool) -> None:
        """Be strict, and read and delete any number of rows."""
        opened = connection.info.get(OPENED_WITH)
        if _must_change(opened):
            _change_settings(connection, *_needed(opened))

    def restore(self, connection: Connection) -> None:
        """A handler's transaction has the settings of the server or the engine."""
        opened = connection.info.get(OPENED_WITH)
        if _must_change(opened):
            _change_settings(connection, *opened[1:])

    def begin(self, connection: Connection) -> None:
        run_text(connection, "START TRANSACTION")

    def limit_lock_waits(self, connection: Connection, seconds: int) -> str:
        """For rows and for tables; the session keeps its former limits in variables."""
        kept = ", ".join(f"{kept} = @@SESSION.{name}" for name, kept in _LIMITS.items())
        limits = ", ".join(f"SESSION {name} = {seconds}" for name in _LIMITS)
        run_text(connection, f"SET {kept}, {limits}")
        return "SET " + ", ".join(f"SESSION {name} = {kept}" for name, kept in _LIMITS.items())

    def awaits_command(
        self, asking: Connection, driver: Any, info: Mapping[str, Any], age: float
    ) -> bool:
        """By its number on that server; a proxy that shares sessions gives other numbers."""
        server, number = info.get(SESSION, (None, None))
        if server is None or number != driver.thread_id():
            return False
        if server != asking.info.get(SESSION, (None,))[0]:
            return False
        query = f"SELECT command FROM information_schema.processlist WHERE id = {number:d}"
        return asking.exec_driver_sql(query).scalar() in {None, "Sleep"}

    def server_reads_only(self, connection: Connection) -> bool:
        return self._is_on(
            connection, "GLOBAL", *_SERVER_READS, *_SESSION_READS
        ) or _schema_reads_only(connection)

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
        query = f"SHOW {scope} VARIABLES WHERE variable_name IN ({wanted})"
        return any(value not in {"OFF", "0"} for _, value in connection.exec_driver_sql(query))


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
        if opened is None or not _must_change(opened):
            yield
            return
        _change_settings(connection, *_needed(opened))
        try:
            yield
        finally:
            # A lost connection has no settings to restore.
            with contextlib.suppress(SQLAlchemyError):
                _change_settings(connection, *opened[1:])


def _schema_reads_only(connection: Connection) -> bool:
    """Whether an administrator made the session's schema read-only, as MySQL allows."""
    name = connection.exec_driver_sql("SELECT DATABASE()").scalar()
    if name is None:
        return False
    quoted = connection.dialect.identifier_preparer.quote_identifier(name)
    shown = connection.exec_driver_sql(f"SHOW CREATE DATABASE {quoted}").one()
    return _READ_ONLY.search(shown[1]) is not None


def _must_change(settings: Sequence[Any] | None) -> TypeGuard[Sequence[Any]]:
    return settings is not None and [*settings[1:]] != _needed(settings)


def _needed(settings: Sequence[Any]) -> list[Any]:
    """The mode and the numbers with which our statements run."""
    mode: str = settings[1]
    modes = [one for one in mode.split(",") if one and one not in _MISREAD]
    if not {"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"} & set(modes):
        modes.append("STRICT_TRANS_TABLES")
    return [",".join(modes), *_NEEDED.values()]


def _change_settings(connection: Connection, mode: str, *numbers: Any) -> None:
    changes = zip(_NEEDED, map(int, numbers), strict=True)
    change = ", ".join([f"sql_mode = '{mode}'", *(f"{name} = {value}" for name, value in changes)])
    connection.exec_driver_sql(f"SET SESSION {change}").close()
