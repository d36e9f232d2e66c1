"""Rows of the shared tables that several servers may want to write at the same moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import insert
from sqlalchemy.exc import DBAPIError

from queue_over_sql.dialects.base import ErrorKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection, Table

    from queue_over_sql.dialects.base import QueueDialect


def insert_unless_there(
    connection: Connection, dialect: QueueDialect, table: Table, values: Mapping[str, Any]
) -> bool:
    """Insert a row; False where another has written one with its key meanwhile.

    Then the transaction may be spoilt, and has to be begun again.
    """
    try:
        connection.execute(insert(table).values(dict(values)))
    except DBAPIError as error:
        if dialect.classify(error) is ErrorKind.DUPLICATE:
            return False
        raise
    return True
