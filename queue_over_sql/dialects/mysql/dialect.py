"""MySQL 8 or newer: rows are locked with SKIP LOCKED, then stamped by primary key."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    LargeBinary,
    String,
    Table,
    Text,
    and_,
    case,
    cast,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import DropTableComment
from sqlalchemy.types import TypeEngine

from queue_over_sql.dialects.base import ErrorKind, QueueDialect, Rounds
from queue_over_sql.dialects.compiled import StatementCache, run_text
from queue_over_sql.dialects.requests import RoundRequest
from queue_over_sql.dialects.statements import rounds
from queue_over_sql.errors import DatabaseUnavailable
from queue_over_sql.schema.conditions import JsonPath, JsonScalar, path_text
from queue_over_sql.schema.dialect import microseconds

if TYPE_CHECKING:
    from queue_over_sql.dialects.arrow.rows import RowColumns


# Server errors: https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html
_KINDS = {
    **dict.fromkeys((1205, 1213, 1020, 1684, 3058, 3572), ErrorKind.TRANSIENT),
    **dict.fromkeys((1317, 1969, 3024), ErrorKind.CANCELLED),
    **dict.fromkeys((1053, 1077, 1079, 1080, 2002, 2003, 2006, 2013, 2055), ErrorKind.DISCONNECT),
    **dict.fromkeys((4031, 1040), ErrorKind.DISCONNECT),
    **dict.fromkeys((1062, 1586), ErrorKind.DUPLICATE),
    **dict.fromkeys((1264, 1366, 1406, 3819, 4025, 3140), ErrorKind.INVALID_VALUE),
    1146: ErrorKind.MISSING_TABLE,
    **dict.fromkeys((1050, 1061), ErrorKind.TABLE_EXISTS),
    **dict.fromkeys((1044, 1142, 1143, 1227, 1370), ErrorKind.FORBIDDEN),
}
# What JSON_TYPE calls numbers.
_INTEGERS, _DECIMALS = ("INTEGER", "UNSIGNED INTEGER"), ("DOUBLE", "DECIMAL")
# How long a creator of tables waits for another, and the lock that it waits for.
_CREATION_SECONDS = 60
_CREATION_LOCK: Final = "queue_over_sql."
_LOCK_NAME_LIMIT: Final = 64


class JoinedRounds(Rounds):
    """Rounds of MySQL and MariaDB: their statements join the table with the rows that are meant."""

    claims_apart = True

    def claim(self, connection: Connection, sql: StatementCache, request: RoundRequest) -> int:
        """Lock the rows in a derived table and stamp them by a join, in one statement."""
        return sql.get(rounds.mark_picked).run(connection, request.values()).rowcount

    def remove(self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]) -> int:
        """By a join with the ids: DELETE takes no hint."""
        return sql.get(rounds.remove_picked).run(connection, values).rowcount

    def unclaim(
        self, connection: Connection, sql: StatementCache, values: Mapping[str, Any]
    ) -> int:
        """By a join likewise: the index of the hint changes under the statement."""
        return sql.get(rounds.unclaim_picked).run(connection, values).rowcount


class MySQLDialect(QueueDialect):
    """MySQL through PyMySQL."""

    name = "mysql"
    checkup_class = "MySQLCheckup"
    rounds_class = JoinedRounds
    identifier_limit = 64
    skip_locked = True
    consecutive_ids = True
    value_hints: ClassVar[Mapping[int, str]] = dict.fromkeys(
        (3140, 3819, 4025), " (JSON with more than 100 nested levels, or 31 on MariaDB?)"
    )
    columns_query = """
        SELECT table_name, column_name FROM information_schema.columns
        WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name IN :names"""
    index_if_not_exists = False
    aborts_on_error = False
    updates_from = True
    # MariaDB gives out the numbers of such an INSERT under a lock of the whole table.
    stage_piece = 20_000
    checks_json = True
    # MariaDB takes an unknown escape and a number that ends with its point for JSON.
    doubtful_json = r"\\[^\x22\\/bfnrtu]|[0-9]\.([^0-9]|$)"
    routines = "psm"
    # It has SKIP LOCKED.
    oldest_version: ClassVar[tuple[int, ...]] = (8, 0, 17)
    too_old = "mysql {needed} or newer is required; this server is {found}."
    collation: ClassVar[str] = "utf8mb4_0900_bin"
    table_options: ClassVar[Mapping[str, Any]] = {
        "mysql_engine": "InnoDB",
        "mysql_charset": "utf8mb4",
        "mariadb_engine": "InnoDB",
        "mariadb_charset": "utf8mb4",
    }

    @functools.cached_property
    def columns(self) -> RowColumns:
        from queue_over_sql.dialects.arrow.types import mysql_type
        from queue_over_sql.dialects.mysql.columns import MySQLColumns

        return MySQLColumns(self, mysql_type)

    def refine(self, connection: Connection) -> None:
        super().refine(connection)
        step = connection.exec_driver_sql("SELECT @@auto_increment_increment").scalar_one()
        self.id_step = int(step)

    def exact_string(self, length: int) -> TypeEngine[Any]:
        """Default collations take 'a', 'A' and 'a ' for one key."""
        return String(length, collation=self.collation)

    def payload_type(self, payload: str) -> TypeEngine[Any]:
        """LONGTEXT and LONGBLOB: the JSON type would reorder keys."""
        return LONGBLOB() if payload == "bytes" else LONGTEXT()

    def json_check(self, column: str) -> str | None:
        """Other clients may not store what is no JSON."""
        return f"json_valid({column})"

    def differs(self, column: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[bool]:
        """Texts as bytes, because collations fold case."""
        if isinstance(column.type, String):
            column, other = cast(column, LargeBinary), cast(other, LargeBinary)
        return column.is_distinct_from(other)

    def payload_equals(
        self, column: ColumnElement[Any], path: JsonPath, value: JsonScalar
    ) -> ColumnElement[bool]:
        """By ``JSON_TYPE`` and the unquoted text; as bytes, because collations fold case."""
        field: ColumnElement[Any] = func.json_extract(column, path_text(path))
        for index, step in enumerate(path):
            if isinstance(step, int):
                # A value counts as a list of itself for [0].
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
        # Text, where it can be: a number beyond 2⁵³ is not exact as a double.
        # MariaDB calls 1e-7 an INTEGER, so the text tells them apart.
        number, fraction = kind.in_((*_INTEGERS, *_DECIMALS)), found.regexp_match("[.eE]")
        decimal = and_(number, fraction, found + literal_column("0.0e0") == float(value))
        if value != int(value):
            return decimal
        return or_(and_(number, found == str(int(value))), decimal)

    def now(self) -> ColumnElement[int]:
        """From UTC: a local time is ambiguous in the autumn hour."""
        return microseconds("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")

    def database_identity(self, table: Table) -> str | None:
        """The database of one server, by its host, port and data."""
        # With a schema the tables are named in full, wherever a session stands.
        where = "''" if table.schema else "DATABASE()"
        return f"SELECT CONCAT_WS(' ', @@hostname, @@port, @@datadir, {where})"

    def prepare_session(self, connection: Connection, *, durable: bool) -> None:
        """READ COMMITTED: no gap locks between claims and publishers."""
        connection.exec_driver_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def begin(self, connection: Connection) -> None:
        run_text(connection, "START TRANSACTION")

    @contextlib.contextmanager
    def creating(self, connection: Connection, schema: str | None) -> Iterator[None]:
        """DDL commits by itself here, so a named lock orders the creators.

        Raises:
            DatabaseUnavailable: another creator had the lock for too long.
        """
        # A transaction that looked at a table keeps others from altering it until it ends. Who
        # waited for the lock like that would wait for its holder, and the holder for him (3058).
        self.commit(connection)
        name = _creation_lock_name(schema or connection.scalar(select(func.database())))
        if connection.scalar(select(func.get_lock(name, _CREATION_SECONDS))) != 1:
            msg = (
                "Another process has been creating queues in this database for "
                f"{_CREATION_SECONDS} seconds and holds the lock {name!r}. Nothing was changed. "
                "Wait for it, or find it with SHOW PROCESSLIST and end it, and try again."
            )
            raise DatabaseUnavailable(msg)
        before = run_text(connection, "SELECT @@SESSION.lock_wait_timeout").scalar_one()
        try:
            # The server's own is a year.
            run_text(connection, f"SET SESSION lock_wait_timeout = {self.lock_seconds}")
            self.begin(connection)
            yield
            # The next creator has to see it all.
            self.commit(connection)
        except BaseException:
            # The lock of a connection that broke is free, and its error is the one to tell.
            with contextlib.suppress(SQLAlchemyError):
                self.rollback(connection)
                _release(connection, name, before)
            raise
        _release(connection, name, before)

    @contextlib.contextmanager
    def waiting_briefly(self, connection: Connection) -> Iterator[None]:
        """A second is the least; ``creating`` puts it back."""
        run_text(connection, "SET SESSION lock_wait_timeout = 1")
        yield

    def add_column_in_use(self, table: str, specification: str) -> list[str]:
        """At once, or by building the table anew beside those who write; never by locking them out.

        A table of MySQL takes 64 changes of the first sort.
        """
        alter = f"ALTER TABLE {table} ADD COLUMN {specification}"
        return [f"{alter}, ALGORITHM=INSTANT", f"{alter}, ALGORITHM=INPLACE, LOCK=NONE"]

    def wait_until_unused(self, connection: Connection, table: Table) -> None:
        """By a change that changes nothing: DROP TABLE has committed what was before it."""
        connection.execute(DropTableComment(table))
        # It has ended the transaction.
        self.begin(connection)

    def holds_number(self, value: float, *, exact: bool) -> bool:
        """Neither NaN nor an infinity."""
        return math.isfinite(value)

    def classify_driver_error(self, error: BaseException | None) -> ErrorKind:
        return _KINDS.get(_code(error), ErrorKind.OTHER)

    def value_hint(self, error: BaseException | None) -> str:
        return self.value_hints.get(_code(error), "")

    def claim_range_hint(self, base: str) -> str | None:
        """MariaDB prefers a ``ref`` of the level to a range of instants that holds most of it.

        So it would walk all that was finished, which stays in the index while anybody has an old
        read view: 29 ms a claim after 30,000 messages instead of 3.5.
        """
        return f"FORCE INDEX ({base}_claim_ix)"

    def archive_index_hint(self, base: str) -> str | None:
        """MySQL reads the index from its beginning where it takes all of it for what is to go."""
        return f"FORCE INDEX ({base}_archive_ix)"

    def rounds_index_hint(self, base: str) -> str | None:
        """By the consumer: a scan of the table would wait for rows that others have locked."""
        return f"FORCE INDEX ({base}_claim_ix)"


def _creation_lock_name(database: str | None) -> str:
    """One for each database: such locks are the whole server's."""
    name = (database or "").lower()
    room = _LOCK_NAME_LIMIT - len(_CREATION_LOCK)
    return _CREATION_LOCK + (
        name if len(name) <= room else sha256(name.encode()).hexdigest()[:room]
    )


def _release(connection: Connection, name: str, lock_seconds: int) -> None:
    connection.execute(select(func.release_lock(name))).close()
    run_text(connection, f"SET SESSION lock_wait_timeout = {lock_seconds}")


def _code(error: BaseException | None) -> int:
    arguments = getattr(error, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else 0
