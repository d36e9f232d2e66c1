"""The portable dialect: what works on every engine that SQLAlchemy knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from queue_over_sql.sql.columns import Columns
from queue_over_sql.sql.dialect import QueueDialect


def row_columns(dialect: QueueDialect) -> Columns:
    """Columns through the driver's rows; needs PyArrow."""
    from queue_over_sql.arrow.rows import RowColumns  # noqa: PLC0415 - needs Arrow

    return RowColumns(dialect)


class PortableDialect(QueueDialect):
    """An engine of which nothing else is known."""

    strategies: ClassVar[Mapping[type, Callable[[Any], Any]]] = {Columns: row_columns}
