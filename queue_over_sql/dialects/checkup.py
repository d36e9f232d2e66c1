"""Check-ups: what ``doctor`` asks each engine to find problems of a database.

They only read, in statements with a time limit. If the account may not read something, the finding
says so.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from sqlalchemy import Connection, Table, bindparam, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from queue_over_sql.dialects.driver_calls import driver_connection
from queue_over_sql.values.durations import duration_text
from queue_over_sql.values.findings import Finding, Level

LONG_SECONDS: Final = 60
"""A transaction that is open for this long delays the cleanup of tables."""
DEAD_ROWS: Final = 10_000
"""Fewer dead rows than this do not matter, even if there are few live ones."""
_HISTORY: Final = 1_000_000
_MOST_SHOWN: Final = 10
# The share of the server's connections that may be in use.
_CROWDED: Final = 0.8
_LARGE_PAGES, _LARGE_LOG, _LARGE_FILE = 25_000, 16 * 2**20, 256 * 2**20
_FILL_PERCENT: Final = 30
# SQLite checks the time limit after this many of its instructions.
_STEPS: Final = 10_000


class Asking:
    """Queries a database, in a session with a time limit for statements.

    Args:
        connection: in autocommit mode.
        tables: the existing tables of the library.
        schema: their schema; None for the connection's.
    """

    def __init__(self, connection: Connection, tables: Sequence[Table], schema: str | None) -> None:
        self.connection = connection
        self.tables = tables
        self.schema = schema

    def rows(self, statement: str, **values: Any) -> Sequence[Any]:
        """All rows of a statement."""
        return self.connection.execute(text(statement), values).all()

    def value(self, statement: str, **values: Any) -> Any:
        """The first value of its first row; None if there is no row."""
        return self.connection.execute(text(statement), values).scalar()

    def written(self, table: Table) -> str:
        """The name of a table as in SQL."""
        return self.connection.dialect.identifier_preparer.format_table(table)


Section = Callable[[Asking], Iterator[Finding]]


class Checkup:
    """The check-up of an unknown engine.

    Args:
        engine: its name.
    """

    ids_query: ClassVar[str | None] = None
    """Reads the tables ``:names`` in ``:schema``, and the last id that each of them gave out."""

    next_id_statement: ClassVar[str] = "ALTER TABLE {table} ALTER COLUMN id RESTART WITH {number}"
    """Lets a table give out ids from a number on."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    def last_ids(self, connection: Connection, tables: Sequence[Table]) -> dict[str, int]:
        """The last id that each table of one schema gave out, by table, where it can be read."""
        if self.ids_query is None or not tables:
            return {}
        names, schema, dialect = [t.name for t in tables], tables[0].schema, connection.dialect
        if dialect.requires_name_normalize:
            names = [dialect.denormalize_name(name) for name in names]
            schema = None if schema is None else dialect.denormalize_name(schema)
        query = text(self.ids_query).bindparams(bindparam("names", expanding=True))
        rows = connection.execute(query, {"names": names, "schema": schema}).all()
        written = dict(zip(names, (table.name for table in tables), strict=True))
        return {written[name]: int(last) for name, last in rows if last is not None}

    def next_id(self, connection: Connection, table: Table, number: int) -> str:
        """The statement that lets a table give out ids from this one on."""
        written = connection.dialect.identifier_preparer.format_table(table)
        return self.next_id_statement.format(
            table=written, quoted=written.replace("'", "''"), name=table.name, number=number
        )

    def described(self, connection: Connection) -> str:
        """Engine, version and driver."""
        version = ".".join(map(str, connection.dialect.server_version_info or ()))
        return f"{self._engine} {version} by {connection.dialect.driver}"

    @property
    def sections(self) -> dict[str, Section]:
        """The checks by name; each may fail separately."""
        return {}

    @contextlib.contextmanager
    def bounded(self, connection: Connection, seconds: float) -> Iterator[None]:
        """Limit the time of statements on a connection during the block."""
        del connection, seconds
        yield


@contextlib.contextmanager
def _set(connection: Connection, do: Sequence[str], undo: Sequence[str]) -> Iterator[None]:
    try:
        for statement in do:
            connection.exec_driver_sql(statement).close()
        yield
    finally:
        # A broken connection has no settings to undo.
        with contextlib.suppress(SQLAlchemyError):
            for statement in undo:
                connection.exec_driver_sql(statement).close()


def _crowded(used: int, most: int) -> Finding:
    said = f"{used} of {most} connections of the server are in use"
    if used < _CROWDED * most:
        return Finding(Level.OK, "connections", said)
    advice = (
        "Raise max_connections or use a pooler: each worker thread needs a connection, and raises "
        "DatabaseUnavailable if it gets none."
    )
    return Finding(Level.WARNING, "connections", said, advice)


def _long(who: str, seconds: float, advice: str) -> Finding:
    said = f"{who} has a transaction that has been open for {duration_text(round(seconds))}"
    return Finding(Level.WARNING, "transactions", said, advice)


_KEEPS: Final = (
    "Commit or end it, and set a time limit in its program. Until then dead rows cannot be "
    "removed, and claims become slower."
)


class PostgreSQLCheckup(Checkup):
    """Settings that lose commits, dead rows, old transactions, broken indexes, rights."""

    # Of a sequence that an account may not read the view shows no value.
    next_id_statement = "SELECT setval(pg_get_serial_sequence('{quoted}', 'id'), {number}, false)"
    ids_query = """
        SELECT left(sequencename, -7), last_value FROM pg_catalog.pg_sequences
        WHERE schemaname = COALESCE(CAST(:schema AS text), current_schema())
          AND right(sequencename, 7) = '_id_seq' AND left(sequencename, -7) IN :names"""

    @property
    def sections(self) -> dict[str, Section]:
        return {
            "settings": self._settings,
            "connections": self._connections,
            "transactions": self._transactions,
            "notifications": self._notifications,
            "bloat": self._bloat,
            "tables": self._unlogged,
            "indexes": self._indexes,
            "rights": self._rights,
        }

    @contextlib.contextmanager
    def bounded(self, connection: Connection, seconds: float) -> Iterator[None]:
        """In a transaction, so that no setting stays in a session that a pooler shares."""
        limit = int(seconds * 1000)
        limits = [f"SET LOCAL {name} = {limit}" for name in ("statement_timeout", "lock_timeout")]
        # Compiling a hundred small counts may take longer than running them.
        with _set(connection, ["BEGIN READ ONLY", *limits, "SET LOCAL jit = off"], ["ROLLBACK"]):
            yield

    def _settings(self, ask: Asking) -> Iterator[Finding]:
        names = ("fsync", "full_page_writes", "synchronous_commit", "autovacuum", "TimeZone")
        row = ask.rows("SELECT " + ", ".join(f"current_setting('{name}')" for name in names))[0]
        fsync, pages, commit, vacuum, zone = row
        if "off" in (fsync, pages):
            said = f"fsync is {fsync}, full_page_writes is {pages}"
            advice = "Turn both on. Otherwise a crash of the host may destroy the whole database."
            yield Finding(Level.ERROR, "settings", said, advice)
        if commit == "off":
            advice = (
                "Turn it on for this database or login. Otherwise a crash loses the last messages."
            )
            yield Finding(Level.WARNING, "settings", "synchronous_commit is off", advice)
        if vacuum == "off":
            advice = "Turn it on. Otherwise the queues' tables grow, and claims become slower."
            yield Finding(Level.ERROR, "settings", "autovacuum is off", advice)
        said = f"synchronous_commit is {commit}, autovacuum is {vacuum}, the time zone is {zone}"
        yield Finding(Level.OK, "settings", said)

    def _connections(self, ask: Asking) -> Iterator[Finding]:
        used = ask.value("SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'client%'")
        yield _crowded(used, int(ask.value("SELECT current_setting('max_connections')")))

    def _transactions(self, ask: Asking) -> Iterator[Finding]:
        yield from self._old(
            ask,
            "SELECT 'process ' || pid || ' (' || concat_ws(', ', usename, application_name, state)"
            " || ')', EXTRACT(EPOCH FROM clock_timestamp() - xact_start) AS seconds"
            " FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL",
            f"{_KEEPS} SELECT pg_terminate_backend(pid) ends it.",
        )
        yield from self._old(
            ask,
            "SELECT 'prepared transaction ' || gid,"
            " EXTRACT(EPOCH FROM clock_timestamp() - prepared) AS seconds"
            " FROM pg_prepared_xacts WHERE database = current_database()",
            f"{_KEEPS} COMMIT PREPARED or ROLLBACK PREPARED ends it.",
        )

    def _notifications(self, ask: Asking) -> Iterator[Finding]:
        used = float(ask.value("SELECT pg_notification_queue_usage()"))
        if used < _CROWDED:
            return
        # Only sessions that listen hold the queue, but a session sees its own channels alone.
        holder = ask.value(
            "SELECT 'process ' || pid || ' (' || concat_ws(', ', datname, usename,"
            " application_name, state) || ')' FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND xact_start IS NOT NULL"
            " ORDER BY query NOT ILIKE 'listen%', xact_start LIMIT 1"
        )
        by = "a session that listens and has an open transaction"
        holder = by if holder is None else f"probably {holder}"
        said = (
            f"the server's queue of notifications is {used:.0%} full, held by {holder}; consumers"
            " only poll"
        )
        advice = (
            "End that transaction, for example with SELECT pg_terminate_backend(pid). When the"
            " queue is full, each transaction of other programs with NOTIFY fails at its commit."
        )
        yield Finding(Level.WARNING, "notifications", said, advice)

    def _old(self, ask: Asking, statement: str, advice: str) -> Iterator[Finding]:
        found = ask.rows(
            f"SELECT * FROM ({statement}) AS t WHERE seconds >= :least"
            f" ORDER BY seconds DESC LIMIT {_MOST_SHOWN}",
            least=LONG_SECONDS,
        )
        for who, seconds in found:
            yield _long(who, float(seconds), advice)

    def _bloat(self, ask: Asking) -> Iterator[Finding]:
        found = ask.rows(
            "SELECT relname, n_dead_tup, n_live_tup, last_autovacuum FROM pg_stat_all_tables"
            " WHERE schemaname = coalesce(:schema, current_schema()) AND relname = ANY(:names)"
            " AND n_dead_tup >= :least AND n_dead_tup > n_live_tup"
            f" ORDER BY n_dead_tup DESC LIMIT {_MOST_SHOWN}",
            schema=ask.schema,
            names=[table.name for table in ask.tables],
            least=DEAD_ROWS,
        )
        for name, dead, live, vacuumed in found:
            when = "never" if vacuumed is None else f"at {vacuumed:%Y-%m-%d %H:%M:%S} UTC"
            said = f"table {name} has {dead:,} dead rows and {live:,} live ones; autovacuum: {when}"
            advice = f"End old transactions first; then run VACUUM {name}."
            yield Finding(Level.WARNING, "bloat", said, advice)

    def _unlogged(self, ask: Asking) -> Iterator[Finding]:
        for table in ask.tables:
            name = ask.written(table)
            query = "SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass(:name)"
            if ask.value(query, name=name):
                said = f"table {name} is UNLOGGED: a crash of the server empties it"
                advice = f"Run ALTER TABLE {name} SET LOGGED."
                yield Finding(Level.WARNING, "tables", said, advice)

    def _indexes(self, ask: Asking) -> Iterator[Finding]:
        found = ask.rows(
            "SELECT i.relname FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid"
            " JOIN pg_class t ON t.oid = x.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace"
            " WHERE NOT x.indisvalid AND n.nspname = coalesce(:schema, current_schema())"
            " AND t.relname = ANY(:names)",
            schema=ask.schema,
            names=[table.name for table in ask.tables],
        )
        for (name,) in found:
            advice = f"Run REINDEX INDEX CONCURRENTLY {name}."
            said = f"index {name} is invalid: its creation was interrupted"
            yield Finding(Level.WARNING, "indexes", said, advice)

    def _rights(self, ask: Asking) -> Iterator[Finding]:
        asked = ("SELECT", "INSERT", "UPDATE", "DELETE")
        wanted = ", ".join(f"has_table_privilege(:name, '{right}')" for right in asked)
        lacking: dict[str, list[str]] = {}
        for table in ask.tables:
            row = ask.rows(f"SELECT {wanted}", name=ask.written(table))[0]
            lacking[table.name] = [r for r, has in zip(asked, row, strict=True) if not has]
        yield from _rights_found(ask.value("SELECT current_user"), lacking)


def _rights_found(who: str, lacking: dict[str, list[str]]) -> Iterator[Finding]:
    found = {name: rights for name, rights in lacking.items() if rights}
    # All queues share ten tables.
    for name, rights in list(found.items())[: 2 * _MOST_SHOWN]:
        said = f"{who} lacks {', '.join(rights)} on {name}"
        advice = (
            "Grant the rights that it needs. Only a login that publishes and consumes needs "
            "all four."
        )
        yield Finding(Level.WARNING, "rights", said, advice)
    if not found:
        yield Finding(Level.OK, "rights", f"{who} may read and write all tables")


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
        with _set(connection, [do], [undo]):
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
        values = {"milliseconds": int(seconds * 1000), "seconds": max(1, round(seconds))}
        do, undo = ([f"SET SESSION {each.format(**values)}" for each in s] for s in self.limits)
        with _set(connection, do, undo):
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
        yield _crowded(int(used), int(ask.value("SELECT @@GLOBAL.max_connections")))

    def _transactions(self, ask: Asking) -> Iterator[Finding]:
        found = ask.rows(
            "SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, NOW())"
            " FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id <> CONNECTION_ID()"
            " AND TIMESTAMPDIFF(SECOND, trx_started, NOW()) >= :least"
            f" ORDER BY trx_started LIMIT {_MOST_SHOWN}",
            least=LONG_SECONDS,
        )
        for thread, seconds in found:
            yield _long(f"connection {thread}", float(seconds), f"{_KEEPS} KILL {thread} ends it.")

    def _bloat(self, ask: Asking) -> Iterator[Finding]:
        # MariaDB also returns the variable's name.
        length = next((int(row[-1]) for row in ask.rows(self.history)), 0)
        said = f"the history list has {length:,} changes, which are kept for old read views"
        if length < _HISTORY:
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
        yield from _rights_found(ask.value("SELECT CURRENT_USER()"), lacking)


# https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html
_DENIED: Final = (1142, 1143)


def _is_denied(ask: Asking, statement: str) -> bool:
    try:
        ask.rows(statement)
    except DBAPIError as error:
        code: Any = next(iter(getattr(error.orig, "args", ())), None)
        return code in _DENIED
    return False


class MariaDBCheckup(MySQLCheckup):
    """As MySQL, under other names."""

    limits = (
        ("max_statement_time = {seconds}", "lock_wait_timeout = {seconds}"),
        ("max_statement_time = DEFAULT", "lock_wait_timeout = DEFAULT"),
    )
    history = "SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'"
    fresh = None


class SQLiteCheckup(Checkup):
    """The journal, free pages, a log that a reader keeps from shrinking, the file's rights."""

    next_id_statement = "UPDATE sqlite_sequence SET seq = {number} - 1 WHERE name = '{name}'"
    ids_query = "SELECT name, seq FROM sqlite_sequence WHERE name IN :names"

    @property
    def sections(self) -> dict[str, Section]:
        return {"settings": self._settings, "bloat": self._bloat, "rights": self._rights}

    @contextlib.contextmanager
    def bounded(self, connection: Connection, seconds: float) -> Iterator[None]:
        raw = driver_connection(connection)
        ends_at = time.monotonic() + seconds
        raw.set_progress_handler(lambda: int(time.monotonic() > ends_at), _STEPS)
        try:
            yield
        finally:
            raw.set_progress_handler(None, 0)

    @staticmethod
    def _file(ask: Asking) -> str:
        return ask.value("SELECT file FROM pragma_database_list WHERE name = 'main'") or ""

    def _settings(self, ask: Asking) -> Iterator[Finding]:
        mode = ask.value("PRAGMA journal_mode")
        if mode != "wal" and self._file(ask):
            advice = (
                "Put the file on a local disk, so that WAL works. Without it readers and the "
                "writer wait for each other."
            )
            yield Finding(Level.WARNING, "settings", f"journal_mode is {mode}", advice)
            return
        said = f"journal_mode is {mode}; a publish is synced to the disk, a claim is not"
        yield Finding(Level.OK, "settings", said)

    def _bloat(self, ask: Asking) -> Iterator[Finding]:
        pages, free = (ask.value(f"PRAGMA {name}") for name in ("page_count", "freelist_count"))
        said = f"{free:,} of {pages:,} pages of the file are free"
        if free >= _LARGE_PAGES and free * 2 > pages:
            advice = "Run VACUUM if you need the disk space. New messages reuse these pages."
            yield Finding(Level.NOTE, "bloat", said, advice)
        else:
            yield Finding(Level.OK, "bloat", said)
        log = Path(f"{self._file(ask)}-wal")
        size = log.stat().st_size if log.exists() else 0
        if size > _LARGE_LOG:
            said = f"the write-ahead log has {size / 2**20:,.0f} MiB"
            advice = (
                "Find the program that reads for a long time (fuser -v on the file that ends in "
                "'-shm') and end its transaction. Until then the log cannot shrink."
            )
            yield Finding(Level.WARNING, "bloat", said, advice)

    def _rights(self, ask: Asking) -> Iterator[Finding]:
        file = self._file(ask)
        if file and not (os.access(file, os.W_OK) and os.access(Path(file).parent, os.W_OK)):
            advice = (
                "Give this account write permission for the file and its folder, which also "
                "holds the log."
            )
            said = "this account may not write the database's file or its folder"
            yield Finding(Level.ERROR, "rights", said, advice)
        else:
            yield Finding(Level.OK, "rights", "this account may write the file and its folder")


class H2Checkup(Checkup):
    """Delayed commits, a mostly empty file, old transactions."""

    ids_query = """
        SELECT TABLE_NAME, IDENTITY_BASE - 1 FROM INFORMATION_SCHEMA.COLUMNS
        WHERE TABLE_SCHEMA = COALESCE(:schema, CURRENT_SCHEMA) AND TABLE_NAME IN :names
          AND IDENTITY_BASE IS NOT NULL"""

    @property
    def sections(self) -> dict[str, Section]:
        return {"settings": self._settings, "transactions": self._transactions}

    @contextlib.contextmanager
    def bounded(self, connection: Connection, seconds: float) -> Iterator[None]:
        limit = f"SET QUERY_TIMEOUT {int(seconds * 1000)}"
        with _set(connection, [limit], ["SET QUERY_TIMEOUT 0"]):
            yield

    def _settings(self, ask: Asking) -> Iterator[Finding]:
        rows = ask.rows(
            "SELECT SETTING_NAME, SETTING_VALUE FROM INFORMATION_SCHEMA.SETTINGS WHERE SETTING_NAME"
            " IN ('WRITE_DELAY', 'info.FILE_SIZE', 'info.CHUNKS_FILL_RATE')"
        )
        found = {name: str(value) for name, value in rows}
        # It exists several times: as it was set, and as it is.
        delay = max((int(value) for name, value in rows if name == "WRITE_DELAY"), default=0)
        if delay:
            said = f"WRITE_DELAY is {delay}: commits reach the disk up to {delay} ms late"
            advice = "Set it to 0 if a power failure must not lose the last messages."
            yield Finding(Level.NOTE, "settings", said, advice)
        else:
            yield Finding(Level.OK, "settings", "a commit waits for the disk")
        size = int(found.get("info.FILE_SIZE", 0))
        fill = int(found.get("info.CHUNKS_FILL_RATE", 100))
        said = f"the file has {size / 2**20:,.0f} MiB, {fill} % of which are in use"
        if size > _LARGE_FILE and fill < _FILL_PERCENT:
            advice = (
                "Run SHUTDOWN COMPACT while nothing uses the database, if you need the disk space."
            )
            yield Finding(Level.NOTE, "bloat", said, advice)
        else:
            yield Finding(Level.OK, "bloat", said)

    def _transactions(self, ask: Asking) -> Iterator[Finding]:
        found = ask.rows(
            "SELECT SESSION_ID, DATEDIFF(SECOND, SLEEP_SINCE, CURRENT_TIMESTAMP)"
            " FROM INFORMATION_SCHEMA.SESSIONS WHERE CONTAINS_UNCOMMITTED"
            " AND SESSION_ID <> SESSION_ID() AND SLEEP_SINCE IS NOT NULL"
            " AND DATEDIFF(SECOND, SLEEP_SINCE, CURRENT_TIMESTAMP) >= :least"
            f" ORDER BY SLEEP_SINCE LIMIT {_MOST_SHOWN}",
            least=LONG_SECONDS,
        )
        for session, seconds in found:
            advice = f"{_KEEPS} CALL ABORT_SESSION({session}) ends it."
            yield _long(f"session {session}", float(seconds), advice)
