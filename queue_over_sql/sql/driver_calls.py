"""Calls of drivers that SQLAlchemy does not offer; errors stay SQLAlchemy's."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.util import await_only

from queue_over_sql.message import Unreadable


def pause(connection: Connection, seconds: float) -> None:
    """Sleep without blocking: on the event loop if the connection's driver uses one."""
    if connection.dialect.is_async:
        pause_on_loop(seconds)
    else:
        time.sleep(seconds)


def pause_on_loop(seconds: float) -> None:
    """Let the other tasks of the event loop run meanwhile."""
    await_only(asyncio.sleep(seconds))


def driver_connection(connection: Connection) -> Any:
    """The driver's own connection."""
    raw: Any = connection.connection.dbapi_connection
    return connection.dialect.get_driver_connection(raw)


def driver_connection_of_other(connection: Connection) -> Any:
    """The same of a connection that another thread uses; None if it is closed by now."""
    with contextlib.suppress(SQLAlchemyError):
        if not (connection.closed or connection.invalidated):
            return driver_connection(connection)
    return None


# https://www.postgresql.org/docs/current/catalog-pg-type.html: the oid of each type whose values
# Python cannot always hold: times, such as infinity, and JSON, such as a number of 5,000 digits.
_PLAIN: Final = (1082, 1083, 1114, 1184, 1186, 1266, 114, 3802)
# Arrays, ranges, arrays of ranges, and multiranges of these.
_NESTED: Final = (
    *(1182, 1183, 1115, 1185, 1187, 1270, 199, 3807),
    *(3908, 3910, 3912, 3909, 3911, 3913, 4533, 4534, 4535, 6152, 6153, 6155),
)


def read_all_values(raw: Any) -> None:
    """Let a psycopg connection read values that Python cannot hold.

    Each becomes an ``Unreadable``. The driver would raise an error instead and lose the whole
    result.
    """
    for oids, lenient in ((_PLAIN, _lenient), (_NESTED, _lenient_about_parts)):
        for oid in oids:
            if (loader := raw.adapters.get_loader(oid, 0)) is not None:
                raw.adapters.register_loader(oid, lenient(loader))


def read_values_as_usual(raw: Any) -> None:
    """Undo ``read_all_values``."""
    for oid in (*_PLAIN, *_NESTED):
        if (loader := raw.adapters.get_loader(oid, 0)) is not None:
            raw.adapters.register_loader(oid, getattr(loader, "usual", loader))


@functools.cache
def _lenient(loader: Any) -> Any:
    from psycopg import DataError  # noqa: PLC0415 - an extra

    class Lenient:
        usual = loader
        format = loader.format

        def __init__(self, oid: int, context: Any = None) -> None:
            self._load = loader(oid, context).load

        def load(self, data: Any) -> Any:
            try:
                return self._load(data)
            except (DataError, ValueError, ArithmeticError, RecursionError) as error:
                return Unreadable(error)

    return Lenient


@functools.cache
def _lenient_about_parts(loader: Any) -> Any:
    lenient: Any = _lenient(loader)

    class LenientAboutParts(lenient):  # type: ignore[misc]
        def load(self, data: Any) -> Any:
            whole = super().load(data)
            return next(_unreadable_in(whole), whole)

    return LenientAboutParts


def _unreadable_in(value: Any) -> Iterator[Unreadable]:
    if isinstance(value, Unreadable):
        yield value
    elif hasattr(value, "lower_inc"):
        yield from _unreadable_in((value.lower, value.upper))
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        for part in value:
            yield from _unreadable_in(part)


def read_any_text(stored: bytes) -> str:
    """Read a text of SQLite that need not be UTF-8; each other byte becomes a lone surrogate.

    The driver would raise an error instead and lose the whole result.
    """
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored.decode(errors="surrogateescape")


@contextlib.contextmanager
def driver_errors(connection: Connection, statement: str) -> Iterator[None]:
    """Raise SQLAlchemy's errors for the driver's, as SQLAlchemy does for its own cursors."""
    driver_error = connection.dialect.loaded_dbapi.Error
    try:
        yield
    except driver_error as error:
        raw: Any = connection.connection.dbapi_connection
        lost = connection.dialect.is_disconnect(error, raw, None)
        raise translated(statement, error, driver_error, connection.dialect, lost=lost) from error


def translated(
    statement: str, error: Exception, driver_error: type[Exception], dialect: Dialect, *, lost: bool
) -> BaseException:
    """SQLAlchemy's error for a driver's; ``driver_error`` is the base class of the driver's."""
    return DBAPIError.instance(
        statement, None, error, driver_error, connection_invalidated=lost, dialect=dialect
    )


# Seconds of silence before the operating system probes the peer, and for unacknowledged data.
_IDLE: Final = 10
_INTERVAL: Final = 5
_COUNT: Final = 3
_UNACKNOWLEDGED: Final = 25
KEEPALIVES: Final[Mapping[str, int]] = {
    "keepalives_idle": _IDLE,
    "keepalives_interval": _INTERVAL,
    "keepalives_count": _COUNT,
    "tcp_user_timeout": _UNACKNOWLEDGED * 1000,
}
"""libpq's names of these limits; libpq sets them itself if the user did not."""
_OPTIONS: Final = {
    "TCP_KEEPIDLE": _IDLE,
    "TCP_KEEPINTVL": _INTERVAL,
    "TCP_KEEPCNT": _COUNT,
    "TCP_USER_TIMEOUT": _UNACKNOWLEDGED * 1000,
}


def watch_network(dialect: Dialect, connection: Any) -> bool:
    """Let the operating system notice a lost peer; returns whether there is a network.

    ``connection`` is the pool's driver connection.
    """
    driver = dialect.get_driver_connection(connection)
    own: Callable[[], bool] | None = getattr(driver, "has_network", None)
    if own is not None and not own():
        return False
    with _socket_of(dialect, driver) as found:
        if found is None:
            # Such a driver may not know its socket's number.
            return own is not None
        if dialect.driver != "psycopg" and found.family in {socket.AF_INET, socket.AF_INET6}:
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in _OPTIONS.items():
                    if hasattr(socket, name):
                        found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return True


def sever(dialect: Dialect, connection: Any) -> None:
    """Shut down the socket of a connection, so that all threads waiting on it get an error.

    ``connection`` is the pool's driver connection; another thread may just be closing it.
    """
    driver = dialect.get_driver_connection(connection)
    own: Callable[[], None] | None = getattr(driver, "sever", None)
    if own is not None:
        own()
        return
    with _socket_of(dialect, driver) as found:
        if found is not None:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)


# Where the kernel's tcp_info has the milliseconds since this end sent data, and received some.
_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
_SENT, _RECEIVED = 44, 52


def quiet_seconds(dialect: Dialect, driver: Any) -> float:
    """For how long a driver's connection has neither sent nor received anything; 0 if unknown."""
    if _INFO is None:
        return 0.0
    with _socket_of(dialect, driver) as found, contextlib.suppress(OSError, struct.error):
        if found is not None and found.family in {socket.AF_INET, socket.AF_INET6}:
            with contextlib.suppress(BlockingIOError):
                if found.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    # Its answer is there: this process is slow to read it.
                    return 0.0
            info = found.getsockopt(socket.IPPROTO_TCP, _INFO, _RECEIVED + 4)
            ages = [struct.unpack_from("I", info, at)[0] for at in (_SENT, _RECEIVED)]
            return float(min(ages)) / 1000
    return 0.0


@contextlib.contextmanager
def _socket_of(dialect: Dialect, driver: Any) -> Iterator[socket.socket | None]:
    """A temporary copy of a driver's socket; None if it has none."""
    none_there = (AttributeError, OSError, TypeError, ValueError, dialect.loaded_dbapi.Error)
    with contextlib.ExitStack() as stack:
        found = None
        with contextlib.suppress(*none_there):
            number = _descriptor(driver)
            # Detach it: only the copy owns its number, and a second close would hit another socket.
            copy = stack.enter_context(_socket(os.dup(number)))
            # If it was closed meanwhile, its number may belong to another socket by now. Who looks
            # for the socket by its ends may find the copy.
            if _descriptor(driver) in {number, copy.fileno()}:
                found = copy
        yield found


def _socket(number: int) -> socket.socket:
    try:
        return socket.socket(fileno=number)
    except OSError:
        os.close(number)
        raise


def _descriptor(driver: Any) -> int:
    if hasattr(driver, "fileno"):
        return int(driver.fileno())
    if hasattr(driver, "_sock"):
        return int(driver._sock.fileno())  # noqa: SLF001 - it has no other way
    transport = getattr(driver, "_writer", None) or driver._transport  # noqa: SLF001 - likewise
    return int(transport.get_extra_info("socket").fileno())


# Drivers whose errors are caused only by their own, Python's and the system's exceptions.
_DRIVERS: Final = frozenset({"psycopg", "pymysql", "sqlite3"})
# asyncio's end of file is neither a builtin nor an OSError, and RSA is not Python's.
_OF_DRIVERS: Final = sys.stdlib_module_names | {"cryptography", "sqlalchemy"}


def interruption_behind(
    error: DBAPIError, handled: BaseException | None = None
) -> BaseException | None:
    """The caller's own exception, raised by a signal, that a driver took for its own failure.

    During a connect, or the ping of a pooled connection, drivers raise errors about their
    half-finished work.

    Args:
        error: the driver's error.
        handled: what somebody was handling before the driver began: Python says that it is behind
            each error from then on.
    """
    driver = type(error.orig).__module__.partition(".")[0]
    if driver not in _DRIVERS:
        return None
    found: BaseException | None = error.orig
    while found is not None and found is not handled:
        module = type(found).__module__.partition(".")[0]
        known = module == driver or module in _OF_DRIVERS or isinstance(found, OSError)
        if not known or not isinstance(found, Exception):
            return found
        found = found.__context__
    return None
