"""Calls past SQLAlchemy, for what it does not offer; errors stay those of SQLAlchemy."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

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


# Whose errors come of their own exceptions, of Python's and of the operating system's alone.
_DRIVERS: Final = frozenset({"psycopg", "pymysql", "sqlite3"})


def interruption_behind(error: DBAPIError) -> BaseException | None:
    """The caller's own exception, raised by a signal, that a driver has taken for its own failure.

    In the middle of a connect, or of the ping of a pooled connection, drivers raise errors about
    what they find in their half-finished work.
    """
    driver = type(error.orig).__module__.partition(".")[0]
    if driver not in _DRIVERS:
        return None
    found: BaseException | None = error.orig
    while found is not None:
        module = type(found).__module__.partition(".")[0]
        known = module in {driver, "sqlalchemy", "builtins"} or isinstance(found, OSError)
        if not known or not isinstance(found, Exception):
            return found
        found = found.__context__
    return None
