"""From the caller's URL or ``Engine`` to our own engine.

A user's ``Engine`` is never changed. We make our own engine that opens connections in the same way.
So our pool, hooks and isolation are separate, and an exhausted pool of the user cannot stop our
heartbeats.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event
from sqlalchemy.dialects import registry
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import NoSuchModuleError
from sqlalchemy.pool import (
    ConnectionPoolEntry,
    Pool,
    PoolResetState,
    QueuePool,
    StaticPool,
)

from queue_over_sql.database.forks import ForkGuard, NoForkGuard
from queue_over_sql.database.opened_engine import OpenedEngine
from queue_over_sql.database.urls import is_in_memory, read_url
from queue_over_sql.database.write_lock import NoWriteLock, WriteLock
from queue_over_sql.errors import UnsupportedByEngine
from queue_over_sql.sql.dialect import QueueDialect
from queue_over_sql.sql.driver_calls import KEEPALIVES

_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
    "h2": "h2+jaydebeapi",
}
_EXTRAS = {
    "postgresql": "the extra postgresql",
    "mysql": "the extra mysql",
    "mariadb": "the extra mysql",
    "h2": "the extra h2",
}
# Check connections at checkout, so that a transactional handler gets no dead one after an outage.
_POOL: Mapping[str, Any] = {
    "pool_size": 8,
    "max_overflow": -1,
    "pool_pre_ping": True,
    # Errors are logged, and logs must not contain payloads.
    "hide_parameters": True,
}
# A lost server must not block a heartbeat for longer than the heartbeat is valid.
_CONNECT_SECONDS: Final = 10
# PyMySQL's connect timeout does not include the greeting. Its read and write timeouts are removed
# after the connect, because they would also end long statements; the watchdog does this better.
_PYMYSQL: Mapping[str, Any] = dict.fromkeys(
    ("connect_timeout", "read_timeout", "write_timeout"), _CONNECT_SECONDS
)
# Whatever the server's default is: READ COMMITTED avoids gap locks between claims, handlers and
# publishers, and a handler's ack must see that the lease of its message was renewed meanwhile.
_OWN_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "postgresql": {"isolation_level": "READ COMMITTED"},
    "mysql": {"isolation_level": "READ COMMITTED"},
    "mariadb": {"isolation_level": "READ COMMITTED"},
}
_BYTES: Final = (
    "SQLAlchemy cannot use this engine, because it gives bytes for texts, as in a database with "
    "the encoding SQL_ASCII: create it with connect_args={'client_encoding': 'utf8'}."
)
_TIMEOUTS_OF_DRIVERS: Mapping[str, Mapping[str, Any]] = {
    "postgresql+psycopg": {
        "connect_timeout": _CONNECT_SECONDS,
        # A database with the encoding SQL_ASCII would give texts as bytes.
        "client_encoding": "utf8",
        **KEEPALIVES,
    },
    "mysql+pymysql": _PYMYSQL,
    "mariadb+pymysql": _PYMYSQL,
}


class EngineForm:
    """Opens engines of synchronous drivers; the base class of other forms."""

    drivers: ClassVar[Mapping[str, str]] = _DRIVERS
    pool: ClassVar[type[Pool]] = QueuePool
    extras: ClassVar[Mapping[str, str]] = _EXTRAS
    has_threads: ClassVar[bool] = True
    """Whether its callers are threads, which may wait for a lock."""

    def pause(self, seconds: float) -> None:
        """Sleep before SQLite is asked again for a lock."""
        time.sleep(seconds)

    def with_driver(self, url: URL) -> URL:
        """Add our driver to a URL without a driver."""
        driver = self.drivers.get(url.drivername)
        return url if driver is None else url.set(drivername=driver)

    def create(self, url: URL, **options: Any) -> Engine:
        """Create an engine.

        Raises:
            UnsupportedByEngine: the driver is not installed, or there is no such dialect.
            ValueError: the driver belongs to the other form.
        """
        try:
            return self._create(url, **options)
        except NoSuchModuleError as error:
            msg = f"SQLAlchemy has no dialect for {url.drivername!r}: install its package."
            raise UnsupportedByEngine(msg) from error
        except ImportError as error:
            extra = self.extras.get(url.get_backend_name())
            ours = self.drivers.get(url.get_backend_name())
            if extra and url.drivername in {ours, url.get_backend_name()}:
                advice = f"install {extra} of queue-over-sql"
            else:
                advice = f"install the Python module {error.name or url.get_driver_name()}"
            msg = f"The driver of {url.drivername!r} is not installed: {advice}."
            raise UnsupportedByEngine(msg) from error

    def open(self, url: URL) -> OpenedEngine:
        """Open our own engine for a URL."""
        url = self.with_driver(url)
        if url.get_backend_name() == "sqlite":
            return self._open_sqlite(url)
        arguments = _TIMEOUTS_OF_DRIVERS.get(url.drivername, {})
        given = {key: value for key, value in arguments.items() if key not in url.query}
        taken_off = [f"_{name}" for name in ("read_timeout", "write_timeout") if name in given]
        given |= _prepare_threshold(url)
        if url.get_backend_name() in {"mysql", "mariadb"}:
            given["use_unicode"] = True
        engine = self._create_own(url, connect_args=given)
        if taken_off:

            def connected(connection: Any, entry: object) -> None:
                del entry
                for name in taken_off:
                    setattr(connection, name, None)

            event.listen(engine, "connect", connected)
        return OpenedEngine(engine, dialect_named)

    def beside(self, engine: Engine) -> OpenedEngine:
        """Open our own engine that opens connections as the user's engine does."""
        url = engine.url.set(drivername=f"{engine.dialect.name}+{engine.dialect.driver}")
        if url.get_backend_name() == "sqlite":
            if is_in_memory(url):
                return OpenedEngine(
                    engine, dialect_named, {}, owned=False, shared=True, borrowed=True
                )
            return self._open_sqlite(url)
        # A copy of the user's pool has the user's arguments, creator and hooks, but no connections.
        # Each connection that it opens is detached, so its limit never applies.
        source = engine.pool.recreate()

        def creator() -> DBAPIConnection:
            try:
                opened = source.connect()
            except TypeError as error:
                if engine.dialect.driver != "psycopg":
                    raise
                raise UnsupportedByEngine(_BYTES) from error
            connection = opened.dbapi_connection
            opened.detach()
            if connection is None:  # pragma: no cover - the pool has just opened it
                raise RuntimeError
            driver = engine.dialect.get_driver_connection(connection)
            if not getattr(driver, "use_unicode", True):
                # Of MySQL's drivers, which would give bytes for texts.
                driver.use_unicode = True
            return connection

        return OpenedEngine(self._create_own(url, creator=creator), dialect_named)

    def _create_own(self, url: URL, **options: Any) -> Engine:
        backend = url.get_backend_name()
        own = _OWN_OPTIONS.get(backend, {})
        pool = {"poolclass": self.pool, "pool_reset_on_return": None, **_POOL}
        engine = self.create(url, **pool, **own, **options)
        event.listen(engine, "reset", _quiet_reset(engine.dialect))
        _reset_autocommit_quietly(engine.dialect)
        if backend in {"mysql", "mariadb"}:
            from queue_over_sql.dialects.mysql import hooks  # noqa: PLC0415 - only for MySQL

            hooks.listen(engine)
        if backend == "h2":
            from queue_over_sql.dialects.h2 import sessions  # noqa: PLC0415 - only for H2

            sessions.listen(engine)
        if engine.dialect.driver == "psycopg":
            from queue_over_sql.dialects.postgresql import (  # noqa: PLC0415 - only for PostgreSQL
                errors,
                plain_values,
            )

            errors.notice_lost_sockets(engine.dialect)
            plain_values.listen(engine)
        return engine

    def _create(self, url: URL, **options: Any) -> Engine:
        _refuse_async(url, is_async=url.get_dialect().is_async)
        return create_engine(url, **options)

    def _open_sqlite(self, url: URL) -> OpenedEngine:
        from queue_over_sql.dialects.sqlite.hooks import (  # noqa: PLC0415 - only for SQLite
            SESSION_MARK,
            SQLiteHooks,
        )

        in_memory = is_in_memory(url)
        options: dict[str, Any] = {"connect_args": {"check_same_thread": False, "timeout": 0}}
        if in_memory:
            options |= {"poolclass": StaticPool, "hide_parameters": True}
        else:
            options |= {"poolclass": self.pool, **_POOL}
        engine = self.create(url, **options)
        write_lock = WriteLock() if self.has_threads and not in_memory else NoWriteLock()
        SQLiteHooks(self.pause, write_lock).listen(engine)
        # An event loop does not outlive a fork, and nothing may wait on it.
        forks = ForkGuard() if self.has_threads else NoForkGuard()
        return OpenedEngine(
            engine,
            dialect_named,
            {SESSION_MARK: True},
            shared=in_memory,
            write_lock=write_lock,
            forks=forks,
        )


def open_engine(database: str | URL | Engine) -> OpenedEngine:
    """Make the engine of a service.

    Args:
        database: an SQLAlchemy URL as text or object, or a user's ``Engine``.

    Raises:
        TypeError: it is neither.
        ValueError: the URL is not valid, or names an asyncio driver.
        UnsupportedByEngine: the driver is not installed, or SQLAlchemy does not know the engine.
    """
    if isinstance(database, Engine):
        _refuse_async(database.url, is_async=database.dialect.is_async)
        return EngineForm().beside(database)
    if not isinstance(database, str | URL):
        msg = f"database must be an SQLAlchemy URL or an Engine, not {type(database).__name__}"
        raise TypeError(msg)
    return EngineForm().open(read_url(database))


def _quiet_reset(dialect: Dialect) -> Callable[..., None]:
    """Roll back what returns to the pool, as SQLAlchemy does, but log no error if it is lost.

    A connection that rested during an outage is found lost only here, and nobody uses it any more.
    """

    def reset(connection: Any, record: ConnectionPoolEntry | None, state: PoolResetState) -> None:
        if state.transaction_was_reset or not state.asyncio_safe:
            return
        try:
            dialect.do_rollback(connection)
        except dialect.loaded_dbapi.Error as error:
            if record is None or not dialect.is_disconnect(error, connection, None):
                raise
            record.invalidate(error)

    return reset


def _reset_autocommit_quietly(dialect: Dialect) -> None:
    """Close a connection that is lost when it returns to the pool and its autocommit is taken back.

    SQLAlchemy would raise the driver's own error to a caller whose work is done, and the pool would
    count the connection as in use for ever.
    """
    take_back = dialect.reset_isolation_level

    def reset(connection: Any) -> None:
        try:
            take_back(connection)
        except dialect.loaded_dbapi.Error as error:
            if not dialect.is_disconnect(error, connection, None):
                raise
            # The check at its next use finds it closed, and the pool opens another one.
            with contextlib.suppress(dialect.loaded_dbapi.Error):
                dialect.do_close(connection)

    dialect.reset_isolation_level = reset  # type: ignore[assignment, method-assign]


def _prepare_threshold(url: URL) -> dict[str, int | None]:
    """The option for psycopg, a number or None, from the text in a URL.

    Raises:
        ValueError: it is neither.
    """
    text = url.query.get("prepare_threshold")
    if text is None or url.get_driver_name() != "psycopg":
        return {}
    if str(text).lower() == "none":
        return {"prepare_threshold": None}
    if not (isinstance(text, str) and text.isascii() and text.isdigit()):
        msg = (
            "prepare_threshold= in the URL must be a number of executions, or none to disable "
            "prepared statements"
        )
        raise ValueError(msg)
    return {"prepare_threshold": int(text)}


def _refuse_async(url: URL, *, is_async: bool) -> None:
    if is_async:
        msg = (
            f"{url.drivername!r} is an asyncio driver: use AsyncQueueService of "
            "queue_over_sql.aio, or a synchronous driver."
        )
        raise ValueError(msg)


def with_driver(url: URL) -> URL:
    """Add our driver to a URL without a driver."""
    return EngineForm().with_driver(url)


def routines_of(engine: str) -> str | None:
    """An engine's word for stored routines, by the engine's name."""
    return dialect_named(engine).features.routines


# The modules of the dialects, of which only the one in use is loaded, and what makes a dialect.
_DIALECTS: Final = {
    "sqlite": ("queue_over_sql.dialects.sqlite.dialect", "dialect"),
    "postgresql": ("queue_over_sql.dialects.postgresql.dialect", "dialect"),
    "mysql": ("queue_over_sql.dialects.mysql.dialect", "dialect"),
    "mariadb": ("queue_over_sql.dialects.mysql.dialect", "mariadb"),
    "h2": ("queue_over_sql.dialects.h2.dialect", "dialect"),
}
for _name in ("h2", "h2.jaydebeapi"):
    registry.register(_name, "sqlalchemy_h2", "H2Dialect")


def dialect_named(name: str, connection: Connection | None = None) -> QueueDialect:
    """The dialect of an engine by its name; the portable one for an unknown engine.

    Args:
        name: of the engine.
        connection: to the server, whose features it has; None for what all servers have.

    Raises:
        UnsupportedByEngine: the server is too old, or cannot run queues.
    """
    module, maker = _DIALECTS.get(name, ("queue_over_sql.dialects.portable", "dialect"))
    make: Callable[[Connection | None], QueueDialect] = getattr(
        importlib.import_module(module), maker
    )
    return make(connection)
