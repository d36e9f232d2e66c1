"""The database's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Select, literal_column, select

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queue_over_sql.schema.queue_tables import QueueTables
    from queue_over_sql.sql.compiled import StatementCache


def select_clock(tables: QueueTables, *others: str) -> Select[Any]:
    """Read the database's clock, and ``others``, which are SQL."""
    columns: list[ColumnElement[Any]] = [literal_column(other) for other in others]
    return select(tables.expressions.now().label("now"), *columns)


def server_now(connection: Connection, sql: StatementCache) -> int:
    """The database's clock in microseconds since the epoch."""
    return int(sql.get(select_clock).run(connection).scalar_one())
