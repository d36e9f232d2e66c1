"""SQLite's tables, which may be STRICT."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import Connection, Table, text

from queue_over_sql.sql.ddl import Ddl


class SQLiteDdl(Ddl):
    """DDL in transactions."""

    def add_columns(self, table: str, specifications: Sequence[str]) -> list[str]:
        """With types that a STRICT table accepts, too; others keep values in the same way."""
        return super().add_columns(table, [_strict(each) for each in specifications])

    def index_names(self, connection: Connection, table: Table) -> set[str | None]:
        """SQLAlchemy would warn of each index on an expression, which a user's table may have."""
        query = text("SELECT name FROM pragma_index_list(:name, :schema)")
        return set(connection.scalars(query, {"name": table.name, "schema": table.schema}))


def _strict(specification: str) -> str:
    return re.sub(
        r"\b(VARCHAR\(\d+\)|BIGINT|SMALLINT)",
        lambda found: "TEXT" if found[1].startswith("V") else "INTEGER",
        specification,
        count=1,
    )
