"""SQLite, the embedded default: one writer at a time, so writing acts are short and IMMEDIATE."""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Final

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Float,
    Insert,
    Integer,
    Numeric,
    Table,
    Update,
    case,
    false,
    func,
    literal_column,
    text,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.types import TypeEngine

from queue_over_sql.claiming.strategy import Claims
from queue_over_sql.dialects.at_once import AtOnceDialect, RoundsAtOnce
from queue_over_sql.dialects.sqlite.checkup import SQLiteCheckup
from queue_over_sql.dialects.sqlite.claim import SQLiteClaims
from queue_over_sql.dialects.sqlite.errors import SQLiteErrors
from queue_over_sql.dialects.sqlite.hooks import FILES, FileId, file_id
from queue_over_sql.dialects.sqlite.insert import SQLiteInserts
from queue_over_sql.dialects.sqlite.notifications import FileNotifications
from queue_over_sql.dialects.sqlite.write_ahead_log import Run, WriteAheadLog
from queue_over_sql.durable.rounds import Rounds
from queue_over_sql.publishing.strategy import Inserts
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.sql.checkup import Checkup
from queue_over_sql.sql.columns import Columns
from queue_over_sql.sql.compiled import StatementCache, run_text
from queue_over_sql.sql.conditions import NUL, JsonPath, JsonScalar, path_text, without_nul
from queue_over_sql.sql.driver_calls import driver_connection, read_any_text
from queue_over_sql.sql.error_kinds import Errors
from queue_over_sql.sql.expressions import microseconds
from queue_over_sql.sql.notifications import Notifications

_MAIN_FILE = "SELECT file FROM pragma_database_list WHERE name = 'main'"
_TRUTHS: Final = (0, 1, None)
_EXACT_IN_FLOAT: Final = 2**53
# From this number on, integers are floating-point numbers in SQLite.
_INTEGER_END = 2**63
# Drivers whose connections several threads can use at once.
_SERIALIZED = 3


def _strict(specification: str) -> str:
    return re.sub(
        r"\b(VARCHAR\(\d+\)|BIGINT|SMALLINT)",
        lambda found: "TEXT" if found[1].startswith("V") else "INTEGER",
        specification,
        count=1,
    )


def _columns(dialect: SQLiteDialect) -> Columns:
    """As elsewhere, but all integers have 64 bits, whatever their column type."""
    from queue_over_sql.arrow.rows import RowColumns  # noqa: PLC0415 - needs Arrow
    from queue_over_sql.arrow.types import wide_type  # noqa: PLC0415 - likewise

    return RowColumns(dialect, wide_type)


class SQLiteDialect(AtOnceDialect):
    """SQLite 3.35 or newer (RETURNING)."""

    name = "sqlite"
    name_query = _MAIN_FILE
    aborts_on_error = False
    look_first = True
    unreachable_hint = "check that its folder exists and that this process may write there"
    locked_hint = "by your own transaction? then pass its connection="
    # The lock may be that of the caller's own transaction, which waits for the creation.
    creation_seconds = 10.0
    creation_hint = (
        "by your own transaction? then call create_queue() or adopt_queue() before it begins, for "
        "example when the program starts"
    )
    separate_durable_sessions = True
    has_files = True
    # The first version with RETURNING.
    oldest_version: ClassVar = (3, 35)
    too_old = "SQLite {needed} or newer is required; this Python has {found}."
    # Without AUTOINCREMENT, ids of finished messages would be reused.
    table_options: ClassVar[Mapping[str, Any]] = {}
    live_table_options: ClassVar[Mapping[str, Any]] = {"sqlite_autoincrement": True}
    strategies: ClassVar[Mapping[type, Callable[[Any], Any]]] = {
        Checkup: SQLiteCheckup,
        Claims: SQLiteClaims,
        Columns: _columns,
        Errors: SQLiteErrors,
        Inserts: SQLiteInserts,
        Notifications: FileNotifications,
        Rounds: RoundsAtOnce,
    }

    @property
    def identity(self) -> TypeEngine[Any]:
        """INTEGER, because only this type is an alias of the row id, which goes up to 2⁶³ - 1."""
        return Integer()

    def add_columns(self, table: str, specifications: Sequence[str]) -> list[str]:
        """With types that a STRICT table accepts, too; others keep values in the same way."""
        return super().add_columns(table, [_strict(each) for each in specifications])

    def payload_equals(
        self, column: ColumnElement[Any], path: JsonPath, value: JsonScalar
    ) -> ColumnElement[bool]:
        """By ``json_type`` and ``json_extract``; invalid JSON has no fields."""
        where = path_text(path)
        # SQLite ends a text at its first NUL.
        column = case((func.instr(column, "\\u0000") > 0, without_nul(column)), else_=column)
        kind = case((func.json_valid(column) == 1, func.json_type(column, where)))
        if value is None or isinstance(value, bool):
            return kind == {None: "null", True: "true", False: "false"}[value]
        found = func.json_extract(column, where)
        if isinstance(value, str):
            return case((kind == "text", found == value.replace("\0", NUL)), else_=false())
        bounded = value if abs(value) < _INTEGER_END else float(value)
        return case((kind.in_(("integer", "real")), found == bounded), else_=false())

    def now(self) -> ColumnElement[int]:
        """The host's clock in milliseconds; 'now' is constant within a statement."""
        days = "(julianday('now') - 2440587.5)"
        return microseconds(f"(CAST(ROUND({days} * 86400000.0) AS INTEGER) * 1000)")

    def database_identity(self, table: Table) -> str | None:
        """The file; an in-memory database has none, and belongs to one connection."""
        return _MAIN_FILE

    def index_names(self, connection: Connection, table: Table) -> set[str | None]:
        """SQLAlchemy would warn of each index on an expression, which a user's table may have."""
        query = text("SELECT name FROM pragma_index_list(:name, :schema)")
        return set(connection.scalars(query, {"name": table.name, "schema": table.schema}))

    def prepare_session(self, connection: Connection, *, durable: bool) -> None:
        """A publish waits for the disk; losing a claim or ack only causes a redelivery."""
        connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        driver_connection(connection).text_factory = read_any_text

    def restore_session(self, connection: Connection) -> None:
        """Let others have the driver's error for a text that is not UTF-8."""
        driver_connection(connection).text_factory = str

    @contextlib.contextmanager
    def reading_all(self, connection: Connection) -> Iterator[None]:
        given = driver_connection(connection)
        before, given.text_factory = given.text_factory, read_any_text
        try:
            yield
        finally:
            given.text_factory = before

    def begin(self, connection: Connection) -> None:
        """Take the write lock at once, because a lock taken after a read may fail for good."""
        run_text(connection, "BEGIN IMMEDIATE")

    def misplaced_file(self, connection: Connection) -> str | None:
        """The database or its log, by their inodes; it takes a few microseconds."""
        known: Mapping[str, FileId | None] = connection.info.get(FILES, {})
        for file, found in known.items():
            if file_id(file) != found:
                return (
                    f"The file {file} was removed or replaced while this process had it open, so "
                    "what this process published last may be lost. Stop all programs that use the "
                    "database, check the file, and start them again. While they run, nothing else "
                    "may move, delete or replace the file, or open it with another SQLite library."
                )
        return None

    def maintenance(self, run: Run, where: str) -> Sequence[Callable[[], None]]:
        return [WriteAheadLog(self, run, where).bound]

    def wal_bytes(self, connection: Connection) -> int | None:
        """The size of the log file; None for an in-memory database."""
        file = connection.exec_driver_sql(_MAIN_FILE).scalar_one()
        if not file:
            return None
        try:
            return Path(f"{file}-wal").stat().st_size
        except OSError:
            # The file exists from the first write to the last close.
            return 0

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

    def exact_converter(
        self, kind: TypeEngine[Any], convert: Callable[[Any], Any] | None
    ) -> Callable[[Any], Any] | None:
        """A column holds values of any type: text in a BOOLEAN, a large integer in a NUMERIC."""
        if convert is None:
            return None
        if isinstance(kind, Boolean):
            return lambda value: convert(value) if value in _TRUTHS else value
        if isinstance(kind, Numeric) and not isinstance(kind, Float) and kind.asdecimal:
            # SQLAlchemy would make a float of it.
            return lambda value: (
                Decimal(value)
                if isinstance(value, int) and abs(value) > _EXACT_IN_FLOAT
                else convert(value)
            )
        return convert

    def holds_number(self, value: float, *, exact: bool) -> bool:
        """SQLite stores NULL for NaN."""
        return not math.isnan(value)

    def insert(self, table: Table) -> Insert:
        return sqlite.insert(table)


def _only_rollback(action: int, first: str | None, *_: object) -> int:
    ends = action == sqlite3.SQLITE_TRANSACTION and first == "ROLLBACK"
    return sqlite3.SQLITE_OK if ends else sqlite3.SQLITE_DENY


def write_nothing(tables: QueueTables) -> Update:
    """Take the write lock."""
    return update(tables.live).where(literal_column("1") == literal_column("0")).values(priority=0)
