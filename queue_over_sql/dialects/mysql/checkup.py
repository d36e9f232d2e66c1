"""The check-ups of MySQL and MariaDB."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError

from queue_over_sql.dialects.postgresql.checkup import rights_found
from queue_over_sql.sql.checkup import (
    DENIED,
    KEEPS_ROWS,
    LONG_SECONDS,
    MOST_SHOWN,
    Asking,
    Checkup,
    Section,
    crowded,
    open_for_long,
    settings_during,
)
from queue_over_sql.values.findings import Finding, Level

LONG_HISTORY: Final = 1_000_000


class MySQLCheckup(Checkup):
    """Settings that lose commits, old read views and their history, old transactions, rights."""

    limits = (
        ("max_execution_time = {milliseconds}", "lock_wait_timeout = {seconds}"),
        ("max_execution_time = DEFAULT", "lock_wait_timeout = DEFAULT"),
    )
    """The session settings for a time limit, and to undo it."""
    history = (
        "SELECT `COUNT` FROM information_schema.INNODB_METRICS"
        " WHERE NAME = 'trx_rseg_history_len' AND STATUS = 'enabled'"
    )
    """Counts the changes that are kept for read views."""
    fresh: tuple[str, str] | None = (
        "SET SESSION information_schema_stats_expiry = 0",
        "SET SESSION information_schema_stats_expiry = DEFAULT",
    )
    """Makes the next id be that of now instead of yesterday's, and undoes that."""
    next_id_statement = "ALTER TABLE {table} AUTO_INCREMENT = {number}"
    ids_query = """
        SELECT table_name, auto_increment - 1 FROM information_schema.tables
        WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name IN :names"""

    def last_ids(self, connection: Connection, tables: Sequence[Table]) -> dict[str, int]:
        if self.fresh is None:
            return super().last_ids(connection, tables)
        do, undo = self.fresh
        with settings_during(connection, [do], [undo]):
            return super().last_ids(connection, tables)

    @property
    def sections(self) -> dict[str, Section]:
        return {
            "settings": self._settings,
            "connections": self._connections,
            "transactions": self._transactions,
            "bloat": self._bloat,
            "tables": self._storage,
            "rights": self._rights,
        }

    @contextlib.contextmanager
    def bounded(self, connection: Connection, seconds: float) -> Iterator[None]:
        values = {"milliseconds": max(1, int(seconds * 1000)), "seconds": max(1, round(seconds))}
        do, undo = ([f"SET SESSION {each.format(**values)}" for each in s] for s in self.limits)
        with settings_during(connection, do, undo):
            yield

    def _settings(self, ask: Asking) -> Iterator[Finding]:
        flush, binlog, sync, zone, isolation = ask.rows(
            "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin,"
            f" @@GLOBAL.sync_binlog, @@GLOBAL.time_zone, @@GLOBAL.{self._isolation(ask)}"
        )[0]
        if int(flush) != 1:
            said = f"innodb_flush_log_at_trx_commit is {flush}"
            advice = "Set it to 1. Otherwise a crash of the host loses the last messages."
            yield Finding(Level.WARNING, "settings", said, advice)
        if int(binlog) and int(sync) != 1:
            said = f"sync_binlog is {sync}"
            advice = "Set it to 1. Otherwise the binary log may lose committed changes in a crash."
            yield Finding(Level.WARNING, "settings", said, advice)
        said = (
            f"innodb_flush_log_at_trx_commit is {flush}, the time zone is {zone}, isolation is "
            f"{isolation} (queues use READ-COMMITTED in their own sessions)"
        )
        yield Finding(Level.OK, "settings", said)

    @staticmethod
    def _isolation(ask: Asking) -> str:
        # MySQL 8 only has the newer name, MariaDB before 11.1 the older one.
        names = ask.rows("SHOW VARIABLES LIKE 't%x_isolation'")
        newer = ask.rows("SHOW VARIABLES LIKE 'transaction_isolation'")
        return str((newer or names)[0][0])

    def _connections(self, ask: Asking) -> Iterator[Finding]:
        used = ask.rows("SHOW GLOBAL STATUS LIKE 'Threads_connected'")[0][1]
        yield crowded(int(used), int(ask.value("SELECT @@GLOBAL.max_connections")))

    def _transactions(self, ask: Asking) -> Iterator[Finding]:
        found = ask.rows(
            "SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, NOW())"
            " FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id <> CONNECTION_ID()"
            " AND TIMESTAMPDIFF(SECOND, trx_started, NOW()) >= :least"
            f" ORDER BY trx_started LIMIT {MOST_SHOWN}",
            least=LONG_SECONDS,
        )
        for thread, seconds in found:
            yield open_for_long(
                f"connection {thread}", float(seconds), f"{KEEPS_ROWS} KILL {thread} ends it."
            )

    def _bloat(self, ask: Asking) -> Iterator[Finding]:
        # MariaDB also returns the variable's name.
        length = next((int(row[-1]) for row in ask.rows(self.history)), 0)
        said = f"the history list has {length:,} changes, which are kept for old read views"
        if length < LONG_HISTORY:
            yield Finding(Level.OK, "bloat", said)
            return
        advice = (
            "End the oldest transactions: claims become slow because they read these old versions."
        )
        yield Finding(Level.WARNING, "bloat", said, advice)

    def _storage(self, ask: Asking) -> Iterator[Finding]:
        for table in ask.tables:
            query = (
                "SELECT engine FROM information_schema.tables WHERE table_name = :name"
                " AND table_schema = COALESCE(:schema, DATABASE())"
            )
            engine = ask.value(query, name=table.name, schema=table.schema)
            if engine is not None and str(engine).upper() != "INNODB":
                name = ask.written(table)
                said = f"table {name} has the storage engine {engine}, so messages come twice"
                advice = f"Stop its workers, and run ALTER TABLE {name} ENGINE=InnoDB."
                yield Finding(Level.ERROR, "tables", said, advice)

    def _rights(self, ask: Asking) -> Iterator[Finding]:
        # Explaining a statement needs the same rights as the statement.
        lacking: dict[str, list[str]] = {}
        for table in ask.tables:
            name, column = ask.written(table), next(iter(table.c)).name
            statements = {
                "SELECT": f"EXPLAIN SELECT * FROM {name} WHERE 1 = 0",
                "INSERT": f"EXPLAIN INSERT INTO {name} ({column}) VALUES (NULL)",
                "UPDATE": f"EXPLAIN UPDATE {name} SET {column} = NULL WHERE 1 = 0",
                "DELETE": f"EXPLAIN DELETE FROM {name} WHERE 1 = 0",
            }
            lacking[table.name] = [
                right for right, each in statements.items() if _is_denied(ask, each)
            ]
        yield from rights_found(ask.value("SELECT CURRENT_USER()"), lacking)


def _is_denied(ask: Asking, statement: str) -> bool:
    try:
        ask.rows(statement)
    except DBAPIError as error:
        code: Any = next(iter(getattr(error.orig, "args", ())), None)
        return code in DENIED
    return False


class MariaDBCheckup(MySQLCheckup):
    """As MySQL, under other names."""

    limits = (
        ("max_statement_time = {seconds}", "lock_wait_timeout = {seconds}"),
        ("max_statement_time = DEFAULT", "lock_wait_timeout = DEFAULT"),
    )
    history = "SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'"
    fresh = None
