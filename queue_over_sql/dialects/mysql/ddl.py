"""The tables of MySQL and MariaDB, whose DDL commits by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from sqlalchemy import Connection, Table, func, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import DropTableComment

from queue_over_sql.errors import DatabaseUnavailable, Locked
from queue_over_sql.sql.compiled import run_text
from queue_over_sql.sql.ddl import Ddl
from queue_over_sql.sql.sessions import BRIEF_SECONDS, creation_seconds_left

# The collation of the names does not tell upper from lower case.
_STORAGE: Final = text(
    "SELECT engine FROM information_schema.tables"
    " WHERE table_schema = coalesce(:schema, database()) AND table_name = :name"
    " ORDER BY CAST(table_name AS BINARY) = CAST(:name AS BINARY) DESC"
)
# The lock of a creator of tables.
_CREATION_LOCK: Final = "queue_over_sql."
_LOCK_NAME_LIMIT: Final = 64
_LIMITS_NOW: Final = "SELECT @@SESSION.lock_wait_timeout, @@SESSION.innodb_lock_wait_timeout"


class MySQLDdl(Ddl):
    """DDL under a named lock of the server."""

    columns_query = """
        SELECT table_name, column_name FROM information_schema.columns
        WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name IN :names"""

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
        self.sessions.commit(connection)
        name = _creation_lock_name(schema or connection.scalar(select(func.database())))
        turn = BRIEF_SECONDS if brief else creation_seconds_left(self.features)
        if connection.scalar(select(func.get_lock(name, turn))) != 1:
            msg = (
                f"Another process has been creating queues in this database for {turn} seconds "
                f"and holds the lock {name!r}. Nothing was changed. Wait for it, or find it with "
                "SHOW PROCESSLIST and end it, and try again."
            )
            raise (Locked if brief else DatabaseUnavailable)(msg)
        before: tuple[int, ...] = tuple(run_text(connection, _LIMITS_NOW).one())
        try:
            # The server's defaults are a year for a table, and 50 s for a row.
            left = creation_seconds_left(self.features)
            limit = BRIEF_SECONDS if brief else min(self.features.lock_seconds, left)
            run_text(connection, _limits(limit, limit))
            self.sessions.begin(connection)
            yield
            # The next creator must see all of it.
            self.sessions.commit(connection)
        except BaseException:
            # A broken connection has released the lock, and its error is the one to raise.
            with contextlib.suppress(SQLAlchemyError):
                self.sessions.rollback(connection)
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
        self.sessions.begin(connection)


def _creation_lock_name(database: str | None) -> str:
    """One name per database, because such locks belong to the whole server."""
    name = (database or "").lower()
    room = _LOCK_NAME_LIMIT - len(_CREATION_LOCK)
    return _CREATION_LOCK + (
        name if len(name) <= room else sha256(name.encode()).hexdigest()[:room]
    )


def _limits(table: int, row: int) -> str:
    return f"SET SESSION lock_wait_timeout = {table}, SESSION innodb_lock_wait_timeout = {row}"


def _release(connection: Connection, name: str, limits: tuple[int, ...]) -> None:
    connection.execute(select(func.release_lock(name))).close()
    run_text(connection, _limits(*limits))
