"""Connections of ADBC, kept for a while: a new one reads the server's catalogue of types first."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import logging
import os
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, QueuePool, event
from sqlalchemy.exc import DisconnectionError

from queue_over_sql.dialects.driver_calls import translated
from queue_over_sql.dialects.postgresql.pooler import conninfo_of

_log = logging.getLogger(__name__)
_KEPT_SECONDS: Final = 60


@contextlib.contextmanager
def adbc_link(connection: Connection) -> Iterator[Any]:
    """A connection of ADBC to the database of another; None where there can be none.

    Its transaction begins with its first statement, and is rolled back at the end.
    """
    link = _link(connection)
    if link is None:
        yield None
        return
    try:
        yield link
    except BaseException:
        link.invalidate()
        raise
    finally:
        link.close()


@contextlib.contextmanager
def adbc_errors(connection: Connection) -> Iterator[None]:
    """SQLAlchemy's errors around those of ADBC."""
    adbc_error = importlib.import_module("adbc_driver_manager").Error
    try:
        yield
    except adbc_error as error:
        # What has no code of the server's is of the way to it.
        lost = not getattr(error, "sqlstate", None)
        raise translated("COPY", error, adbc_error, connection.dialect, lost=lost) from error


def _link(connection: Connection) -> Any:
    try:
        driver = importlib.import_module("adbc_driver_postgresql.dbapi")
    except ImportError:
        return None
    try:
        return _pool(driver, conninfo_of(connection), os.getpid()).connect()
    except Exception as error:  # noqa: BLE001 - whatever it is, there is another way
        _log.warning("ADBC cannot connect, so psycopg reads: %s", error)
        return None


@functools.lru_cache(maxsize=64)
def _pool(driver: Any, conninfo: str, pid: int) -> QueuePool:
    """Of this process: a forked one must not use its parent's connections, nor close them."""
    pool = QueuePool(
        lambda: driver.connect(conninfo), pool_size=8, max_overflow=-1, recycle=_KEPT_SECONDS
    )
    event.listen(pool, "checkout", _check)
    atexit.register(lambda: pool.dispose() if pid == os.getpid() else None)
    return pool


def _check(link: Any, *_: object) -> None:
    try:
        with link.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchall()
    except Exception as error:
        raise DisconnectionError from error
