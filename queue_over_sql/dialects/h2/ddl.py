"""H2's tables, whose DDL commits by itself and copies them."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from queue_over_sql.errors import DatabaseUnavailable, Locked
from queue_over_sql.sql.ddl import Ddl
from queue_over_sql.sql.driver_calls import pause
from queue_over_sql.sql.errors import ErrorKind
from queue_over_sql.sql.sessions import BRIEF_SECONDS

_CREATION = "queue_over_sql_creation"
# How long a creator may take before others no longer wait for it.
_CREATION_SECONDS = 60
# How long all others pause at most for a table that stays in use.
_BRIEF_MILLISECONDS = 300
_UNTIL_THEY_PAUSE = 0.03
_OTHERS = """
    SELECT (SELECT IS_ADMIN FROM INFORMATION_SCHEMA.USERS WHERE USER_NAME = CURRENT_USER),
           (SELECT COUNT(*) FROM INFORMATION_SCHEMA.SESSIONS WHERE SESSION_ID <> SESSION_ID())"""
_MET_ANOTHER = (
    ErrorKind.DUPLICATE,
    ErrorKind.TRANSIENT,
    ErrorKind.TABLE_EXISTS,
    ErrorKind.MISSING_TABLE,
)


class H2Ddl(Ddl):
    """DDL under a row, which is the lock."""

    columns_query = """
        SELECT TABLE_NAME, COLUMN_NAME FROM INFORMATION_SCHEMA.COLUMNS
        WHERE TABLE_SCHEMA = COALESCE(:schema, CURRENT_SCHEMA) AND TABLE_NAME IN :names"""

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

    def add_columns(self, table: str, specifications: Sequence[str]) -> list[str]:
        """All in one statement, because H2 copies the whole table for each."""
        return [f"ALTER TABLE {table} ADD ({', '.join(specifications)})"]

    def drop_columns(self, table: str, names: Sequence[str]) -> list[str]:
        """All in one statement, as above."""
        return [f"ALTER TABLE {table} DROP COLUMN ({', '.join(names)})"]


def _release(connection: Connection) -> None:
    connection.exec_driver_sql(f"DELETE FROM {_CREATION}").close()
    connection.exec_driver_sql("COMMIT").close()
