"""MySQL 8 or newer: rows are locked with SKIP LOCKED, then stamped by primary key."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any, ClassVar, Final

from sqlalchemy import (
    ClauseElement,
    ColumnElement,
    Connection,
    Executable,
    LargeBinary,
    String,
    Table,
    Text,
    Time,
    and_,
    case,
    cast,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
)
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import DropTableComment
from sqlalchemy.types import TypeEngine

from queue_over_sql.dialects.mysql.checkup import MySQLCheckup
from queue_over_sql.dialects.mysql.errors import MySQLErrors
from queue_over_sql.dialects.mysql.hooks import EVERY_CHARACTER, OPENED_WITH, SETTINGS
from queue_over_sql.dialects.mysql.insert import MySQLInserts
from queue_over_sql.dialects.mysql.rounds import JoinedRounds
from queue_over_sql.durable.rounds import Rounds
from queue_over_sql.errors import DatabaseUnavailable, Locked
from queue_over_sql.publishing.strategy import Inserts
from queue_over_sql.sql.checkup import Checkup
from queue_over_sql.sql.columns import Columns
from queue_over_sql.sql.compiled import run_text
from queue_over_sql.sql.conditions import JsonPath, JsonScalar, path_text
from queue_over_sql.sql.dialect import BRIEF_SECONDS, OLDEST_SESSION, QueueDialect
from queue_over_sql.sql.driver_calls import driver_connection
from queue_over_sql.sql.error_kinds import Errors
from queue_over_sql.sql.expressions import microseconds

# The collation of the names does not tell upper from lower case.
_STORAGE: Final = text(
    "SELECT engine FROM information_schema.tables"
    " WHERE table_schema = coalesce(:schema, database()) AND table_name = :name"
    " ORDER BY CAST(table_name AS BINARY) = CAST(:name AS BINARY) DESC"
)
# What lets a server only read, and a session; the second has one name on each server.
_SERVER_READS: Final = ("read_only", "super_read_only", "innodb_read_only")
_SESSION_READS: Final = ("transaction_read_only", "tx_read_only")
# JSON_TYPE's names for numbers.
_INTEGERS, _DECIMALS = ("INTEGER", "UNSIGNED INTEGER"), ("DOUBLE", "DECIMAL")
# How long a session waits for a row and for a table, and the variables that keep the user's limits.
_LIMITS: Final = {
    "innodb_lock_wait_timeout": "@queue_over_sql_row",
    "lock_wait_timeout": "@queue_over_sql_table",
}
# How long a creator of tables waits for another one's lock, and the lock's name.
_CREATION_SECONDS = 30
_CREATION_LOCK: Final = "queue_over_sql."
_LOCK_NAME_LIMIT: Final = 64


def columns_of(dialect: MySQLDialect) -> Columns:
    """Reads and writes columns through the drivers of MySQL and MariaDB; needs PyArrow."""
    from queue_over_sql.arrow.types import mysql_type
    from queue_over_sql.dialects.mysql.columns import MySQLColumns

    return MySQLColumns(dialect, mysql_type)


class MySQLDialect(QueueDialect):
    """MySQL through PyMySQL."""

    name = "mysql"
    identifier_limit = 64
    skip_locked = True
    # Another session may have another one: after SET GLOBAL, or while group replication runs.
    id_step: ClassVar[str | None] = "@@SESSION.auto_increment_increment"
    columns_query = """
        SELECT table_name, column_name FROM information_schema.columns
        WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name IN :names"""
    index_if_not_exists = False
    aborts_on_error = False
    name_query = "SELECT DATABASE()"
    session_seconds = OLDEST_SESSION
    updates_from = True
    # MariaDB numbers the rows of such an INSERT under a lock of the whole table.
    stage_piece = 20_000
    checks_json = True
    # MariaDB accepts unknown escapes, and numbers that end with a point, as JSON.
    doubtful_json = r"\\[^\x22\\/bfnrtu]|[0-9]\.([^0-9]|$)"
    routines = "psm"
    # The first version with SKIP LOCKED.
    oldest_version: ClassVar[tuple[int, ...]] = (8, 0, 17)
    too_old = "mysql {needed} or newer is required; this server is {found}."
    collation: ClassVar[str] = "utf8mb4_0900_bin"
    table_options: ClassVar[Mapping[str, Any]] = {
        "mysql_engine": "InnoDB",
        "mysql_charset": "utf8mb4",
        "mariadb_engine": "InnoDB",
        "mariadb_charset": "utf8mb4",
    }

    strategies: ClassVar[Mapping[type, Callable[[Any], Any]]] = {
        Checkup: MySQLCheckup,
        Columns: columns_of,
        Errors: MySQLErrors,
        Inserts: MySQLInserts,
        Rounds: JoinedRounds,
    }

    undoes_on_timeout = False
    """A lock timeout undoes the whole transaction."""

    def refine(self, connection: Connection) -> None:
        super().refine(connection)
        asked = "SELECT @@max_allowed_packet, @@innodb_rollback_on_timeout"
        most, on_timeout = connection.exec_driver_sql(asked).one()
        self.statement_bytes = int(most)
        self.undoes_on_timeout = bool(int(on_timeout))

    def exact_converter(
        self, kind: TypeEngine[Any], convert: Callable[[Any], Any] | None
    ) -> Callable[[Any], Any] | None:
        """A TIME is a length from -838 to 838 hours, of which a time of day holds one day."""
        if convert is None or not isinstance(kind, Time):
            return convert

        def read(value: Any) -> Any:
            return value if isinstance(value, timedelta) and value.days else convert(value)

        return read

    def exact_string(self, length: int) -> TypeEngine[Any]:
        """An exact collation, because default ones treat 'a', 'A' and 'a ' as equal."""
        return String(length, collation=self.collation)

    def payload_type(self, payload: str) -> TypeEngine[Any]:
        """LONGTEXT and LONGBLOB, because the JSON type would reorder keys."""
        return LONGBLOB() if payload == "bytes" else LONGTEXT(charset="utf8mb4")

    def json_check(self, column: str) -> str | None:
        """Keep other clients from storing invalid JSON."""
        return f"json_valid({column})"

    def differs(self, column: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[bool]:
        """Compare texts as bytes, because collations fold case."""
        if isinstance(column.type, String):
            column, other = cast(column, LargeBinary), cast(other, LargeBinary)
        return column.is_distinct_from(other)

    def payload_equals(
        self, column: ColumnElement[Any], path: JsonPath, value: JsonScalar
    ) -> ColumnElement[bool]:
        """Compare ``JSON_TYPE`` and the unquoted text, as bytes, because collations fold case."""
        field: ColumnElement[Any] = func.json_extract(column, path_text(path))
        for index, step in enumerate(path):
            if isinstance(step, int):
                # MySQL treats a value as a list of itself for [0].
                whole_list = func.json_extract(column, path_text(path[:index]))
                field = case((func.json_type(whole_list) == "ARRAY", field))
        kind, found = func.json_type(field), func.json_unquote(field)
        if value is None:
            return kind == "NULL"
        if isinstance(value, bool):
            return and_(kind == "BOOLEAN", found == ("true" if value else "false"))
        if isinstance(value, str):
            same = cast(found, LargeBinary) == cast(literal(value, Text()), LargeBinary)
            return case((kind == "STRING", same), else_=false())
        # Compare text if possible, because a number above 2⁵³ is not exact as a double.
        # MariaDB calls 1e-7 an INTEGER; its text tells it apart.
        number, fraction = kind.in_((*_INTEGERS, *_DECIMALS)), found.regexp_match("[.eE]")
        decimal = and_(number, fraction, found + literal_column("0.0e0") == float(value))
        if value != int(value):
            return decimal
        return or_(and_(number, found == str(int(value))), decimal)

    def now(self) -> ColumnElement[int]:
        """From UTC, because a local time is ambiguous when clocks are set back."""
        return microseconds("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")

    def database_identity(self, table: Table) -> str | None:
        """The database of one server, identified by host, port and data directory."""
        # With a schema, tables are named in full, whatever the session's default is.
        where = "''" if table.schema else "COALESCE(DATABASE(), '')"
        return f"SELECT CONCAT_WS(' ', @@hostname, @@port, @@datadir, {where}), {SETTINGS}"

    def moves(self, table: Table) -> bool:
        """After ``USE``, and other settings count for each use, too."""
        return True

    def check_caller(self, connection: Connection) -> None:
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

    def table_flaw(self, connection: Connection, table: Table) -> str | None:
        """Only InnoDB locks rows, and rolls back."""
        values = {"name": table.name, "schema": table.schema}
        found = connection.execute(_STORAGE, values).scalars().all()
        engine = found[0] if found else None
        if engine is None or str(engine).upper() == "INNODB":
            return None
        name = connection.dialect.identifier_preparer.format_table(table)
        return (
            f"its storage engine {engine} has no transactions and no row locks, so messages would "
            f"be delivered twice. Run: ALTER TABLE {name} ENGINE=InnoDB"
        )

    def prepare_session(self, connection: Connection, *, durable: bool) -> None:
        """Be strict, and delete without a key in the condition."""
        before = _settings_to_change(connection.info.get(OPENED_WITH))
        if before is not None:
            _change_settings(connection, _strict(before[0]), 0)

    def restore_session(self, connection: Connection) -> None:
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

    @contextlib.contextmanager
    def creating(
        self, connection: Connection, schema: str | None, *, brief: bool = False
    ) -> Iterator[None]:
        """A named lock orders the creators, because DDL commits by itself here.

        Raises:
            DatabaseUnavailable: another creator held the lock for too long.
        """
        # Commit first. A transaction that read a table blocks its ALTER. If it waited for the named
        # lock, the holder's ALTER could wait for it in turn (3058).
        self.commit(connection)
        name = _creation_lock_name(schema or connection.scalar(select(func.database())))
        turn = BRIEF_SECONDS if brief else _CREATION_SECONDS
        if connection.scalar(select(func.get_lock(name, turn))) != 1:
            msg = (
                f"Another process has been creating queues in this database for {turn} seconds "
                f"and holds the lock {name!r}. Nothing was changed. Wait for it, or find it with "
                "SHOW PROCESSLIST and end it, and try again."
            )
            raise (Locked if brief else DatabaseUnavailable)(msg)
        before = run_text(connection, "SELECT @@SESSION.lock_wait_timeout").scalar_one()
        try:
            # The server's default is a year.
            limit = BRIEF_SECONDS if brief else self.lock_seconds
            run_text(connection, f"SET SESSION lock_wait_timeout = {limit}")
            self.begin(connection)
            yield
            # The next creator must see all of it.
            self.commit(connection)
        except BaseException:
            # A broken connection has released the lock, and its error is the one to raise.
            with contextlib.suppress(SQLAlchemyError):
                self.rollback(connection)
                _release(connection, name, before)
            raise
        _release(connection, name, before)

    @contextlib.contextmanager
    def waiting_briefly(self, connection: Connection) -> Iterator[None]:
        """One second is the minimum; ``creating`` restores the setting."""
        run_text(connection, "SET SESSION lock_wait_timeout = 1")
        yield

    def add_column_in_use(self, table: str, specification: str) -> list[str]:
        """Instantly, or by a rebuild beside writers, but never under a lock that blocks them.

        A MySQL table allows 64 instant changes.
        """
        alter = f"ALTER TABLE {table} ADD COLUMN {specification}"
        return [f"{alter}, ALGORITHM=INSTANT", f"{alter}, ALGORITHM=INPLACE, LOCK=NONE"]

    def wait_until_unused(self, connection: Connection, table: Table) -> None:
        """Make a change without effect first, because DROP TABLE commits what was before it."""
        connection.execute(DropTableComment(table))
        # It has ended the transaction.
        self.begin(connection)

    def holds_number(self, value: float, *, exact: bool) -> bool:
        """Columns hold neither NaN nor infinities."""
        return math.isfinite(value)

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

    def claim_range_hint(self, base: str) -> str | None:
        """Without it MariaDB prefers a ``ref`` of the level to a range with most of its rows.

        Then it would read all finished messages, which stay in the index while any old read view
        exists: 29 ms per claim after 30,000 messages, instead of 3.5.
        """
        return f"FORCE INDEX ({base}_claim_ix)"

    def archive_index_hint(self, base: str) -> str | None:
        """Without it MySQL may read the index from its beginning, if it expects to prune all."""
        return f"FORCE INDEX ({base}_archive_ix)"

    def id_index_hint(self) -> str | None:
        """Else ids are found by reading the whole table, if few rows are expected in it.

        Finished messages that are not purged yet do not count as such, but are read past, and the
        lock of any other consumer is waited for, which may wait for ours.
        """
        return "FORCE INDEX (PRIMARY)"

    def delete_by_ids(
        self,
        table: Table,
        ids: Sequence[ColumnElement[Any]],
        condition: ColumnElement[bool] | None = None,
    ) -> ClauseElement:
        """As ``id_index_hint``, in a join, because a plain DELETE takes no such hint."""
        if len(ids) == 1:
            return super().delete_by_ids(table, ids, condition)
        return DeleteByIds(table, ids, condition)

    def rounds_index_hint(self, base: str) -> str | None:
        """By the consumer, because a table scan would wait for rows that others have locked."""
        return f"FORCE INDEX ({base}_claim_ix)"


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


def _creation_lock_name(database: str | None) -> str:
    """One name per database, because such locks belong to the whole server."""
    name = (database or "").lower()
    room = _LOCK_NAME_LIMIT - len(_CREATION_LOCK)
    return _CREATION_LOCK + (
        name if len(name) <= room else sha256(name.encode()).hexdigest()[:room]
    )


def _release(connection: Connection, name: str, lock_seconds: int) -> None:
    connection.execute(select(func.release_lock(name))).close()
    run_text(connection, f"SET SESSION lock_wait_timeout = {lock_seconds}")


class DeleteByIds(Executable, ClauseElement):
    """Joins the table with the ids in this order.

    With ``id IN (…)`` both servers read the whole table if they expect few rows in it, past all
    finished messages that are not purged yet, and wait for rows that other consumers have locked,
    which then wait for ours. A DELETE takes no hint for that, except in a join.
    """

    inherit_cache = False

    def __init__(
        self, table: Table, ids: Sequence[ColumnElement[Any]], condition: ColumnElement[bool] | None
    ) -> None:
        self.table = table
        self.ids = ids
        self.condition = condition


@compiles(DeleteByIds)
def _deletion_as_sql(deletion: DeleteByIds, compiler: Any, **options: Any) -> str:
    table = compiler.preparer.format_table(deletion.table)
    key = compiler.process(deletion.table.c.id, **options)
    ids = ", ".join(compiler.process(each, **options) for each in deletion.ids)
    sql = (
        f"DELETE {table} FROM JSON_TABLE(JSON_ARRAY({ids}), '$[*]' COLUMNS (id BIGINT PATH '$'))"
        f" AS picked STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY) ON {key} = picked.id"
    )
    if deletion.condition is None:
        return sql
    return f"{sql} WHERE {compiler.process(deletion.condition, **options)}"
