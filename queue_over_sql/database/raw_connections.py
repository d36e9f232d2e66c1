"""Connections of drivers and of Django, seen by SQLAlchemy for one operation in their transaction.

SQLAlchemy's attempts to end the transaction or close the connection have no effect, because both
belong to the caller. The connection's settings are not changed either; only our own cursors convert
rows and texts in our way.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from datetime import date, datetime, time
from typing import Any, Final, NamedTuple

from sqlalchemy import URL, Connection, Dialect, Engine, StaticPool
from sqlalchemy.exc import PendingRollbackError, ResourceClosedError

from queue_over_sql.sql.driver_calls import read_any_text

_IN_TRANSACTION: Final = 1
"""The flag for an open transaction in the server status of MySQL's protocol."""


class RawDriver(NamedTuple):
    """The facts about a driver.

    Attributes:
        family: SQLAlchemy's name of the database.
        name: SQLAlchemy's name of the driver.
        is_open: whether a connection is open; it may raise anything if it is not.
        commits: whether a connection is in autocommit mode now.
        cursor: makes a cursor whose rows are tuples.
    """

    family: str
    name: str
    is_open: Callable[[Any], bool]
    commits: Callable[[Any], bool]
    cursor: Callable[[Any], Any]
    is_async: bool = False


class RawConnection(NamedTuple):
    """A caller's connection, and its driver."""

    given: Any
    driver: RawDriver


def raw_connection(given: object) -> RawConnection | None:
    """The driver connection of a known driver, also from Django; None for anything else.

    Raises:
        PendingRollbackError: Django's transaction has already failed.
    """
    given = _of_django(given)
    for each in type(given).__mro__:
        driver = _DRIVERS.get((each.__module__.partition(".")[0], each.__name__))
        if driver is not None:
            return RawConnection(given, driver)
    return None


def _of_django(given: Any) -> Any:
    # These modules are loaded if such a connection exists.
    proxies, base = map(
        sys.modules.get, ("django.utils.connection", "django.db.backends.base.base")
    )
    is_proxy = proxies is not None and type(given) is proxies.ConnectionProxy
    if not is_proxy and (base is None or not isinstance(given, base.BaseDatabaseWrapper)):
        return given
    if given.in_atomic_block and given.needs_rollback:
        raise PendingRollbackError(
            "An error occurred in the atomic block: leave the block before you use its connection"
        )
    given.ensure_connection()
    return given.connection


class CallersPool(StaticPool):
    """The pool of one caller's connection.

    Attributes:
        given: that connection.
        commits: whether it is in autocommit mode.
    """

    given: Any
    commits: bool


@contextlib.contextmanager
def in_sqlalchemy(raw: RawConnection, dialect: Dialect) -> Iterator[Connection]:
    """An SQLAlchemy connection around a caller's, during the block.

    Args:
        raw: the caller's connection.
        dialect: for its driver; see ``dialect_for``.

    Raises:
        ResourceClosedError: it is closed.
    """
    given, driver = raw
    commits = _commits(raw)
    pool = CallersPool(lambda: _adapted(raw, dialect), reset_on_return=None, dialect=dialect)
    pool.given, pool.commits = given, commits
    url = URL.create(f"{dialect.name}+{driver.name}")
    with _texts_as_str(raw), Engine(pool, dialect, url, hide_parameters=True).connect() as found:
        yield found


def dialect_for(raw: RawConnection, own: Dialect) -> Dialect:
    """The initialized dialect of a caller's driver; the service's own if it is the same.

    Raises:
        NoSuchModuleError: the driver is for another database.
    """
    kind = _kind(raw.driver, own.name)
    return own if kind is type(own) else _initialized(raw, kind)


def dialect_of_driver(raw: RawConnection) -> Dialect:
    """The initialized dialect of a caller's driver, whatever the service's own database is."""
    return _initialized(raw, _kind(raw.driver, raw.driver.family))


def _kind(driver: RawDriver, database: str) -> Any:
    url = URL.create(f"{database}+{driver.name}")
    kind: Any = url.get_dialect()
    return kind.get_async_dialect_cls(url) if driver.is_async else kind


def _initialized(raw: RawConnection, kind: Any) -> Dialect:
    driver = raw.driver
    # A check for hstore would change how the caller's connection reads it.
    options = {"use_native_hstore": False} if driver.name.startswith("psycopg") else {}
    dialect: Dialect = kind(dbapi=kind.import_dbapi(), **options)
    with in_sqlalchemy(raw, dialect) as connection:
        dialect.initialize(connection)
    return dialect


def _commits(raw: RawConnection) -> bool:
    given, driver = raw
    try:
        if driver.is_open(given):
            return driver.commits(given)
    except Exception as error:
        raise ResourceClosedError(f"This connection is closed: {error}") from error
    raise ResourceClosedError("This connection is closed")


@contextlib.contextmanager
def _texts_as_str(raw: RawConnection) -> Iterator[None]:
    # Only SQLite sets this for the whole connection.
    given = raw.given
    if raw.driver.family != "sqlite" or not hasattr(given, "text_factory"):
        yield
        return
    before, given.text_factory = given.text_factory, read_any_text
    try:
        yield
    finally:
        given.text_factory = before


def _adapted(raw: RawConnection, dialect: Dialect) -> Any:
    given, driver = raw
    if not driver.is_async:
        return _Lent(given, driver.cursor)
    module = importlib.import_module(f"sqlalchemy.dialects.{driver.family}.{driver.name}")
    adapter = getattr(module, f"AsyncAdapt_{driver.name}_connection")
    lent = _LentOnLoop(given, driver.cursor)
    # That of psycopg takes no driver in SQLAlchemy 2.0.
    takes_driver = "dbapi" in inspect.signature(adapter).parameters
    adapted = adapter(dialect.dbapi, lent) if takes_driver else adapter(lent)
    if driver.name == "asyncpg":
        # Otherwise it would begin a transaction inside the caller's.
        adapted.autocommit = True
    return adapted


class _Lent:
    """A caller's connection; its transaction is never ended here, and it is never closed here."""

    def __init__(self, given: Any, cursor: Callable[[Any], Any]) -> None:
        self._given = given
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given, name)

    def cursor(self, *_: object, **__: object) -> Any:
        return self._cursor(self._given)

    def _leave_it(self, *_: object, **__: object) -> Any:
        return None

    commit = rollback = close = terminate = _leave_it


class _LentOnLoop(_Lent):
    """As ``_Lent``, for asyncio drivers."""

    async def _leave_it(self, *_: object, **__: object) -> None:
        return

    commit = rollback = close = ensure_closed = _leave_it


def _psycopg_cursor(name: str) -> Callable[[Any], Any]:
    def cursor(given: Any) -> Any:
        psycopg = sys.modules["psycopg"]
        return getattr(psycopg, name)(given, row_factory=psycopg.rows.tuple_row)

    return cursor


def _cursor_of(module: str) -> Callable[[Any], Any]:
    return lambda given: given.cursor(importlib.import_module(module).Cursor)


def _psycopg2_cursor(given: Any) -> Any:
    return given.cursor(cursor_factory=importlib.import_module("psycopg2.extensions").cursor)


class _AiosqliteCursor:
    """Opens a cursor whose rows are tuples."""

    def __init__(self, given: Any) -> None:
        self._given = given

    async def __aenter__(self) -> Any:
        cursor = await self._given.cursor()
        cursor.row_factory = _as_stored
        return cursor

    def __await__(self) -> Generator[Any, Any, Any]:
        # As SQLAlchemy 2.0 opens it.
        return self.__aenter__().__await__()


def _sqlite3_cursor(given: Any) -> Any:
    cursor = sys.modules["sqlite3"].Cursor(given)
    cursor.row_factory = _as_stored
    return cursor


def _as_stored(_: object, row: tuple[Any, ...]) -> tuple[Any, ...]:
    # A connection may convert dates, as Django's does; SQLAlchemy expects texts.
    return tuple([each if type(each) in _PLAIN else _text_of(each) for each in row])


_PLAIN: Final = frozenset({int, str, float, bytes, bool, type(None)})


def _text_of(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(" ")
    return value.isoformat() if isinstance(value, date | time) else value


def _sqlite_commits(given: Any) -> bool:
    # On Python 3.12 or newer: True, False, or -1 to follow isolation_level.
    autocommit = getattr(given, "autocommit", -1)
    by_itself = given.isolation_level is None if autocommit == -1 else autocommit
    return bool(by_itself) and not given.in_transaction


def _psycopg_commits(given: Any) -> bool:
    return given.autocommit and not given.info.transaction_status


def _mysql_commits(given: Any) -> bool:
    return given.get_autocommit() and not given.server_status & _IN_TRANSACTION


_DRIVERS: Final = {
    ("psycopg", "Connection"): RawDriver(
        "postgresql",
        "psycopg",
        is_open=lambda given: not given.closed,
        commits=_psycopg_commits,
        cursor=_psycopg_cursor("Cursor"),
    ),
    ("psycopg", "AsyncConnection"): RawDriver(
        "postgresql",
        "psycopg",
        is_open=lambda given: not given.closed,
        commits=_psycopg_commits,
        cursor=_psycopg_cursor("AsyncCursor"),
        is_async=True,
    ),
    ("psycopg2", "connection"): RawDriver(
        "postgresql",
        "psycopg2",
        is_open=lambda given: not given.closed,
        commits=lambda given: given.autocommit and not given.get_transaction_status(),
        cursor=_psycopg2_cursor,
    ),
    **dict.fromkeys(
        (("asyncpg", "Connection"), ("asyncpg", "PoolConnectionProxy")),
        RawDriver(
            "postgresql",
            "asyncpg",
            is_open=lambda given: not given.is_closed(),
            commits=lambda given: not given.is_in_transaction(),
            cursor=lambda given: given.cursor,
            is_async=True,
        ),
    ),
    ("pymysql", "Connection"): RawDriver(
        "mysql",
        "pymysql",
        is_open=lambda given: bool(given.open),
        commits=_mysql_commits,
        cursor=_cursor_of("pymysql.cursors"),
    ),
    ("MySQLdb", "Connection"): RawDriver(
        "mysql",
        "mysqldb",
        is_open=lambda given: bool(given.open),
        # The driver does not say whether a transaction was begun.
        commits=lambda given: bool(given.get_autocommit()),
        cursor=_cursor_of("MySQLdb.cursors"),
    ),
    ("aiomysql", "Connection"): RawDriver(
        "mysql",
        "aiomysql",
        is_open=lambda given: not given.closed,
        commits=_mysql_commits,
        cursor=_cursor_of("aiomysql.cursors"),
        is_async=True,
    ),
    ("asyncmy", "Connection"): RawDriver(
        "mysql",
        "asyncmy",
        is_open=lambda given: bool(given.connected),
        commits=lambda given: given.get_autocommit() and not given.get_transaction_status(),
        cursor=_cursor_of("asyncmy.cursors"),
        is_async=True,
    ),
    ("sqlite3", "Connection"): RawDriver(
        "sqlite",
        "pysqlite",
        is_open=lambda given: given.in_transaction in {True, False},
        commits=_sqlite_commits,
        cursor=_sqlite3_cursor,
    ),
    ("aiosqlite", "Connection"): RawDriver(
        "sqlite",
        "aiosqlite",
        is_open=lambda given: given.in_transaction in {True, False},
        commits=_sqlite_commits,
        cursor=_AiosqliteCursor,
        is_async=True,
    ),
}


def drivers(*, on_loop: bool) -> list[str]:
    """The modules of the drivers whose connections can be used, for threads or an event loop."""
    return sorted({name for (name, _), each in _DRIVERS.items() if each.is_async == on_loop})
