"""Connections of ADBC, kept for a while: a new one reads the server's catalogue of types first."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from queue_over_sql.dialects.driver_calls import translated
from queue_over_sql.dialects.postgresql.pooler import conninfo_of

if TYPE_CHECKING:
    from sqlalchemy import Connection


_log = logging.getLogger(__name__)
_KEPT_SECONDS: Final = 60.0
_lock: Final = threading.Lock()
_idle: Final[dict[tuple[int, str], list[tuple[Any, float]]]] = {}


@contextlib.contextmanager
def adbc_link(connection: Connection) -> Iterator[Any]:
    """A connection of ADBC to the database of another; None where there can be none.

    Its transaction begins with its first statement, and is rolled back at the end.
    """
    conninfo = _conninfo(connection)
    link = None if conninfo is None else _taken(conninfo) or _opened(conninfo)
    if link is None or conninfo is None:
        yield None
        return
    try:
        yield link
        link.rollback()
    except BaseException:
        _closed(link)
        raise
    with _lock:
        _idle.setdefault((os.getpid(), conninfo), []).append((link, time.monotonic()))


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


def _conninfo(connection: Connection) -> str | None:
    try:
        importlib.import_module("adbc_driver_postgresql.dbapi")
    except ImportError:
        return None
    return conninfo_of(connection)


def _opened(conninfo: str) -> Any:
    driver = importlib.import_module("adbc_driver_postgresql.dbapi")
    try:
        return driver.connect(conninfo)
    except Exception as error:  # noqa: BLE001 - whatever it is, there is another way
        _log.warning("ADBC cannot connect, so psycopg reads: %s", error)
        return None


def _taken(conninfo: str) -> Any:
    while True:
        with _lock:
            kept = _idle.get((os.getpid(), conninfo))
            if not kept:
                return None
            link, since = kept.pop()
        if time.monotonic() - since < _KEPT_SECONDS and _answers(link):
            return link
        _closed(link)


def _answers(link: Any) -> bool:
    try:
        with link.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchall()
    except Exception:  # noqa: BLE001 - it is of no more use, whatever the reason
        return False
    return True


def _closed(link: Any) -> None:
    with contextlib.suppress(Exception):
        link.close()


@atexit.register
def _close_kept() -> None:
    for (pid, _), kept in _idle.items():
        for link, _ in kept if pid == os.getpid() else ():
            _closed(link)
