"""H2 with two ways to claim: SKIP LOCKED from 2.2.220 on, a bounded UPDATE before."""

from __future__ import annotations

import contextlib
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Numeric,
    String,
    Table,
    case,
    cast,
    false,
    literal_column,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from queue_over_sql.claiming.strategy import Claims
from queue_over_sql.dialects.h2.checkup import H2Checkup
from queue_over_sql.dialects.h2.claim import H2Claims
from queue_over_sql.dialects.h2.errors import H2Errors
from queue_over_sql.dialects.portable import row_columns
from queue_over_sql.errors import DatabaseUnavailable, Locked, UnsupportedByEngine
from queue_over_sql.message import Unreadable
from queue_over_sql.sql.checkup import Checkup
from queue_over_sql.sql.columns import Columns
from queue_over_sql.sql.conditions import JsonPath, JsonScalar
from queue_over_sql.sql.dialect import BRIEF_SECONDS, QueueDialect
from queue_over_sql.sql.driver_calls import driver_connection, pause
from queue_over_sql.sql.error_kinds import ErrorKind, Errors
from queue_over_sql.sql.expressions import microseconds


class JsonField(ColumnElement[Any]):
    """A text field that is parsed as JSON; an empty path means the whole."""

    inherit_cache = False

    def __init__(self, text: ColumnElement[Any], path: JsonPath) -> None:
        self.text = text
        self.path = path


@compiles(JsonField)
def _field_as_sql(field: JsonField, compiler: Any, **options: Any) -> str:
    sql = f"({compiler.process(field.text, **options)} FORMAT JSON)"
    for step in field.path:
        sql = f"({sql}[{step + 1}])" if isinstance(step, int) else f'({sql}."{step}")'
    return sql


_SKIP_LOCKED_SINCE = (2, 2, 220)
_CREATION = "queue_over_sql_creation"
# How long a creator may take before others no longer wait for it.
_CREATION_SECONDS = 60
# How long all others pause at most for a table that stays in use.
_BRIEF_MILLISECONDS = 300
_UNTIL_THEY_PAUSE = 0.03
_OTHERS = """
    SELECT (SELECT IS_ADMIN FROM INFORMATION_SCHEMA.USERS WHERE USER_NAME = CURRENT_USER),
           (SELECT COUNT(*) FROM INFORMATION_SCHEMA.SESSIONS WHERE SESSION_ID <> SESSION_ID())"""
_SETTINGS = """
    SELECT SETTING_NAME, SETTING_VALUE FROM INFORMATION_SCHEMA.SETTINGS
    WHERE SETTING_NAME IN ('MODE', 'DATABASE_TO_UPPER', 'DATABASE_TO_LOWER', 'IGNORECASE')"""
# Settings with the values under which the tests run, in upper case.
_NEEDED: Final = (
    (
        "MODE",
        ("REGULAR", "LEGACY", "POSTGRESQL", "MYSQL", "MARIADB", "DB2", "HSQLDB"),
        "its compatibility mode changes the meaning of statements and of empty texts",
    ),
    ("DATABASE_TO_LOWER", ("FALSE",), "it stores the names of tables in another case"),
    ("DATABASE_TO_UPPER", ("TRUE",), "it stores the names of tables in another case"),
    (
        "IGNORECASE",
        ("FALSE", "0"),
        "the keys a and A would be one key, and a message would be lost",
    ),
)
_MET_ANOTHER = (
    ErrorKind.DUPLICATE,
    ErrorKind.TRANSIENT,
    ErrorKind.TABLE_EXISTS,
    ErrorKind.MISSING_TABLE,
)


class H2Dialect(QueueDialect):
    """H2 through the ``h2+jaydebeapi`` dialect of this package."""

    name = "h2"
    strategies: ClassVar[Mapping[type, Callable[[Any], Any]]] = {
        Checkup: H2Checkup,
        Claims: H2Claims,
        Columns: row_columns,
        Errors: H2Errors,
    }
    identifier_limit = 256
    insert_returning = True
    aborts_on_error = False
    undoes_failed_insert = False
    look_first = True
    columns_query = """
        SELECT TABLE_NAME, COLUMN_NAME FROM INFORMATION_SCHEMA.COLUMNS
        WHERE TABLE_SCHEMA = COALESCE(:schema, CURRENT_SCHEMA) AND TABLE_NAME IN :names"""
    alters_in_view = True
    # 2.2.224 cannot open its file again after a commit that looked for a table just altered.
    alters_alone = True
    counts_utf16 = True
    oldest_version: ClassVar = (2, 1, 214)
    too_old = "H2 {needed} or newer is required; this database is {found}."

    def limit_lock_waits(self, connection: Connection, seconds: int) -> str:
        before = connection.exec_driver_sql("SELECT LOCK_TIMEOUT()").scalar_one()
        connection.exec_driver_sql(f"SET LOCK_TIMEOUT {seconds * 1000}").close()
        return f"SET LOCK_TIMEOUT {before}"

    @contextlib.contextmanager
    def creating(
        self, connection: Connection, schema: str | None, *, brief: bool = False
    ) -> Iterator[None]:
        """A row is the lock, because DDL commits here and would release a transaction's lock.

        The row of a dead creator is ignored when it is old, or was written by another clock.

        Raises:
            DatabaseUnavailable: others held the lock for too long.
        """
        turn = BRIEF_SECONDS if brief else 2 * _CREATION_SECONDS
        deadline = time.monotonic() + turn
        while not self._took_creation_lock(connection):
            if time.monotonic() > deadline:
                msg = (
                    f"Other processes have been creating queues in this database for {turn} "
                    "seconds. Nothing was changed. Wait for them, or delete the row of the table "
                    f"{_CREATION}, and try again."
                )
                raise (Locked if brief else DatabaseUnavailable)(msg)
            time.sleep(random.uniform(0.01, 0.05))  # noqa: S311 - spreads creators, guards nothing
        try:
            yield
        except BaseException:
            # If the connection broke, its error is the one to raise.
            with contextlib.suppress(SQLAlchemyError):
                _release(connection)
            raise
        _release(connection)

    @contextlib.contextmanager
    def waiting_briefly(self, connection: Connection) -> Iterator[None]:
        """Pause all others, because H2 rebuilds the table, which is missing for a moment.

        The server also ends their pause if this connection is lost.
        """
        before = connection.exec_driver_sql("SELECT LOCK_TIMEOUT()").scalar_one()
        connection.exec_driver_sql(f"SET LOCK_TIMEOUT {_BRIEF_MILLISECONDS}").close()
        # Only an administrator can do this.
        with contextlib.suppress(DBAPIError):
            connection.exec_driver_sql("SET EXCLUSIVE 1").close()
        try:
            # A session that has already resolved the table's name runs until it is paused.
            pause(connection, _UNTIL_THEY_PAUSE)
            yield
        finally:
            with contextlib.suppress(SQLAlchemyError):
                connection.exec_driver_sql("SET EXCLUSIVE 0").close()
            with contextlib.suppress(SQLAlchemyError):
                connection.exec_driver_sql(f"SET LOCK_TIMEOUT {before}").close()

    def count_others(self, connection: Connection) -> int | None:
        """Those of this process, too; only an administrator is shown any."""
        admin, others = connection.exec_driver_sql(_OTHERS).one()
        return int(others) if admin else None

    def wait_until_unused(self, connection: Connection, table: Table) -> None:
        """Make a change without effect first, because DROP TABLE commits what was before it."""
        preparer, column = connection.dialect.identifier_preparer, next(iter(table.c))
        change = f"ADD IF NOT EXISTS {preparer.format_column(column)} BIGINT"
        connection.exec_driver_sql(f"ALTER TABLE {preparer.format_table(table)} {change}").close()

    def _took_creation_lock(self, connection: Connection) -> bool:
        now = "CAST(EXTRACT(EPOCH FROM CURRENT_TIMESTAMP) AS BIGINT)"
        # A time in the future was written before the clock was set back.
        old = f"since < {now} - {_CREATION_SECONDS} OR since > {now} + 1"
        try:
            for statement in (
                f"CREATE TABLE IF NOT EXISTS {_CREATION} (id INTEGER PRIMARY KEY, since BIGINT)",
                f"DELETE FROM {_CREATION} WHERE {old}",
                f"INSERT INTO {_CREATION} VALUES (1, {now})",
                "COMMIT",
                # From here on there is a transaction again, as far as DDL allows.
                "BEGIN",
            ):
                connection.exec_driver_sql(statement).close()
        except DBAPIError as error:
            if self.errors.classify(error) not in _MET_ANOTHER:
                raise
            connection.exec_driver_sql("ROLLBACK").close()
            return False
        return True

    def refine(self, connection: Connection) -> None:
        super().refine(connection)
        found = {name: str(value) for name, value in connection.exec_driver_sql(_SETTINGS)}
        for name, fits, why in _NEEDED:
            if name in found and found[name].upper() not in fits:
                msg = (
                    f"This H2 database has the setting {name}={found[name]}, and so it cannot hold "
                    f"queues: {why}. Use a database of its own for the queues, or one with "
                    f"{name}={fits[0]}. Nothing was changed."
                )
                raise UnsupportedByEngine(msg)
        version = connection.dialect.server_version_info or self.oldest_version
        self.skip_locked = version >= _SKIP_LOCKED_SINCE

    def prepare_session(self, connection: Connection, *, durable: bool) -> None:
        """Let values that Python cannot hold stand as ``Unreadable``, so that they lose no row."""
        driver_connection(connection).stand_in = Unreadable

    def restore_session(self, connection: Connection) -> None:
        driver_connection(connection).stand_in = None

    @contextlib.contextmanager
    def reading_all(self, connection: Connection) -> Iterator[None]:
        given = driver_connection(connection)
        before, given.stand_in = given.stand_in, Unreadable
        try:
            yield
        finally:
            given.stand_in = before

    def exact_string(self, length: int) -> TypeEngine[Any]:
        """Twice the length, because a character may count as two."""
        return String(2 * length)

    def is_claimed(self, table: Table) -> ColumnElement[bool]:
        """A comparison, because H2 reads the whole table for IS NOT NULL."""
        return table.c.consumer_id > literal_column("''")

    def payload_equals(
        self, column: ColumnElement[Any], path: JsonPath, value: JsonScalar
    ) -> ColumnElement[bool]:
        """Compare the field's JSON; numbers by their text, because 1 and 1.0 differ as JSON.

        Raises:
            UnsupportedByEngine: H2 can search in JSON only from 2.2.220 on.
        """
        if not self.skip_locked:
            msg = "Searching by fields of the payload requires H2 2.2.220 or newer."
            raise UnsupportedByEngine(msg)
        field: ColumnElement[Any] = JsonField(column, path)
        found = cast(field, String)
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = cast(found, Numeric) == cast(repr(value), Numeric)
            matches: ColumnElement[bool] = case(
                (found.op("REGEXP")("^[-0-9]"), number), else_=false()
            )
        else:
            wanted = cast(json.dumps(value, ensure_ascii=False), String)
            matches = field == JsonField(wanted, ())
        # Invalid JSON would raise an error.
        return case((column.op("IS")(literal_column("JSON")), matches), else_=false())

    def add_columns(self, table: str, specifications: Sequence[str]) -> list[str]:
        """All in one statement, because H2 copies the whole table for each."""
        return [f"ALTER TABLE {table} ADD ({', '.join(specifications)})"]

    def drop_columns(self, table: str, names: Sequence[str]) -> list[str]:
        """All in one statement, as above."""
        return [f"ALTER TABLE {table} DROP COLUMN ({', '.join(names)})"]

    def now(self) -> ColumnElement[int]:
        """The server's clock; one value per transaction, as H2 defines it."""
        seconds = "EXTRACT(EPOCH FROM CURRENT_TIMESTAMP(6))"
        return microseconds(f"CAST({seconds} * 1000000 AS BIGINT)")

    def database_identity(self, table: Table) -> str | None:
        """The file; an in-memory database has a name that is unique in its process."""
        # With a schema, tables are named in full, whatever the session's own is.
        where = "" if table.schema else " || ' ' || CURRENT_SCHEMA"
        return f"SELECT COALESCE(DATABASE_PATH(), DATABASE()){where}"

    def moves(self, table: Table) -> bool:
        """By ``SET SCHEMA``."""
        return table.schema is None

    def holds_number(self, value: float, *, exact: bool) -> bool:
        """Only floats have NaN and infinities."""
        return not exact or math.isfinite(value)

    def claim_index_hint(self, base: str) -> str | None:
        """The index gives the order; an ORDER BY would lock every matching row."""
        return f"USE INDEX ({base}_claim_ix)"


def _release(connection: Connection) -> None:
    connection.exec_driver_sql(f"DELETE FROM {_CREATION}").close()
    connection.exec_driver_sql("COMMIT").close()
