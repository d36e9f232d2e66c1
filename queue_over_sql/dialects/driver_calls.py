"""Calls past SQLAlchemy, for what it does not offer; errors stay those of SQLAlchemy."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection


def driver_connection(connection: Connection) -> Any:
    """The driver's own connection."""
    raw: Any = connection.connection.dbapi_connection
    return connection.dialect.get_driver_connection(raw)


@contextlib.contextmanager
def driver_errors(connection: Connection, statement: str) -> Iterator[None]:
    """What SQLAlchemy does for its own cursors: its errors around the driver's."""
    driver_error = connection.dialect.loaded_dbapi.Error
    try:
        yield
    except driver_error as error:
        raw: Any = connection.connection.dbapi_connection
        raise DBAPIError.instance(
            statement,
            None,
            error,
            driver_error,
            connection_invalidated=connection.dialect.is_disconnect(error, raw, None),
            dialect=connection.dialect,
        ) from error
