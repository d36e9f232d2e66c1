"""The portable dialect: what works on every engine that SQLAlchemy knows."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from queue_over_sql.errors import UnsupportedByEngine
from queue_over_sql.sql.checkup import Checkup
from queue_over_sql.sql.columns import Columns
from queue_over_sql.sql.dialect import QueueDialect
from queue_over_sql.sql.expressions import Expressions
from queue_over_sql.sql.features import Features


def row_columns(expressions: Expressions) -> Columns:
    """Columns through the driver's rows; needs PyArrow."""
    from queue_over_sql.arrow.rows import RowColumns  # noqa: PLC0415 - needs Arrow

    return RowColumns(expressions)


def dialect(connection: Connection | None) -> QueueDialect:
    """An engine of which nothing else is known.

    Raises:
        UnsupportedByEngine: its clock cannot be read.
    """
    returning = connection is not None and connection.dialect.insert_returning
    features = Features(insert_returning=returning)
    found = QueueDialect(features, checkup=Checkup(features), columns=row_columns)
    if connection is not None:
        try:
            found.read_clock(connection)
        except DBAPIError as error:
            msg = (
                f"The engine {connection.dialect.name!r} cannot run queues: the portable dialect "
                "needs EXTRACT(EPOCH FROM CURRENT_TIMESTAMP)."
            )
            raise UnsupportedByEngine(msg) from error
    return found
