"""PostgreSQL's tables: how they are created and changed beside others, and what they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection, Table, text

from queue_over_sql.sql.ddl import Ddl
from queue_over_sql.sql.sessions import BRIEF_SECONDS, creation_seconds_left

# A number that other programs are unlikely to lock: the letters of "queue".
_CREATION_LOCK = 0x7175657565
# How long all others may wait behind a waiting ALTER.
_BRIEF_MILLISECONDS: Final = 100


class PostgreSQLDdl(Ddl):
    """DDL in transactions, under an advisory lock."""

    # information_schema only shows what the login has rights to.
    columns_query = """
        SELECT t.relname, a.attname
        FROM pg_catalog.pg_class t
        JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid
        JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
        WHERE t.relname IN :names AND a.attnum > 0 AND NOT a.attisdropped
          AND CASE WHEN CAST(:schema AS text) IS NULL THEN pg_table_is_visible(t.oid)
                   ELSE n.nspname = CAST(:schema AS text) END"""

    def table_flaw(self, connection: Connection, table: Table) -> str | None:
        kind, _ = self._kept_as(connection, table)
        if kind not in {"f", "t"}:
            return None
        what = "a temporary table" if kind == "t" else "a foreign table"
        return f"{what} cannot be a queue. Use an ordinary table"

    def is_emptied_by_crash(self, connection: Connection, table: Table) -> bool:
        return self._kept_as(connection, table)[1]

    @staticmethod
    def _kept_as(connection: Connection, table: Table) -> tuple[str, bool]:
        name = connection.dialect.identifier_preparer.format_table(table)
        query = (
            "SELECT CASE relpersistence WHEN 't' THEN 't' ELSE relkind END, relpersistence = 'u'"
            " FROM pg_class WHERE oid = to_regclass(:name)"
        )
        row = connection.execute(text(query), {"name": name}).one_or_none()
        return ("", False) if row is None else (str(row[0]), bool(row[1]))

    @contextlib.contextmanager
    def creating(
        self, connection: Connection, schema: str | None, *, brief: bool = False
    ) -> Iterator[None]:
        """CREATE … IF NOT EXISTS can fail in a race; the commit releases the lock.

        The limit comes first, because the server's own is usually none.
        """
        turn = BRIEF_SECONDS if brief else creation_seconds_left(self.features)
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{turn}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")
        left = min(self.features.lock_seconds, creation_seconds_left(self.features))
        use = BRIEF_SECONDS if brief else left
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{use}s'")
        yield

    @contextlib.contextmanager
    def waiting_briefly(self, connection: Connection) -> Iterator[None]:
        """Wait briefly, because all later users of the table wait behind a waiting ALTER."""
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_BRIEF_MILLISECONDS}ms'")
        yield
