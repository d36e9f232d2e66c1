"""Engines of asynchronous drivers, made from a URL or the caller's ``AsyncEngine``."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

from sqlalchemy import URL, Dialect, Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, Pool

from queue_over_sql.database.opened_engine import OpenedEngine
from queue_over_sql.database.urls import read_url
from queue_over_sql.dialects.engines import EngineForm
from queue_over_sql.errors import UnsupportedByEngine
from queue_over_sql.sql.driver_calls import pause_on_loop

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+aiomysql",
    "mariadb": "mariadb+aiomysql",
}


class AsyncEngineForm(EngineForm):
    """Opens engines of asynchronous drivers."""

    drivers: ClassVar[Mapping[str, str]] = _DRIVERS
    pool: ClassVar[type[Pool]] = AsyncAdaptedQueuePool
    has_threads = False
    extras: ClassVar[Mapping[str, str]] = {
        "sqlite": "the extra asyncio",
        "mysql": "the extra asyncio",
        "mariadb": "the extra asyncio",
        "postgresql": "the extras asyncio and postgresql",
    }

    def pause(self, seconds: float) -> None:
        """Let other tasks run meanwhile."""
        pause_on_loop(seconds)

    def open(self, url: URL) -> OpenedEngine:
        """Open our own engine for a URL.

        Raises:
            UnsupportedByEngine: the database has no asynchronous driver.
        """
        if url.get_backend_name() == "h2":
            msg = (
                "H2 has no asynchronous driver: use QueueService in threads "
                "(asyncio.to_thread), or another database."
            )
            raise UnsupportedByEngine(msg)
        return super().open(url)

    def _create(self, url: URL, **options: Any) -> Engine:
        if not url.get_dialect().get_async_dialect_cls(url).is_async:
            name = url.get_backend_name()
            ours = _DRIVERS.get(name)
            advice = f"write {name}:// or {ours}://" if ours else "use an asynchronous one"
            msg = f"{url.drivername!r} is a synchronous driver: {advice}."
            raise ValueError(msg)
        engine = create_async_engine(url, **options).sync_engine
        if engine.dialect.driver == "aiomysql":
            _mend_aiomysql()
            event.listen(engine, "do_connect", _give_context)
        if engine.dialect.driver in {"aiomysql", "asyncmy"}:
            _mend_ping(engine.dialect)
        return engine


def _give_context(_dialect: Dialect, _record: Any, _arguments: Any, options: Any) -> None:
    """Let a URL have the parameters of PyMySQL for TLS; aiomysql wants a context instead."""
    if settings := options.get("ssl"):
        pymysql: Any = importlib.import_module("pymysql")
        options["ssl"] = pymysql.Connection(ssl=settings, defer_connect=True).ctx


def _mend_aiomysql() -> None:
    """Let aiomysql send bytes, and insist on TLS.

    Version 0.3.2 calls a PyMySQL function that PyMySQL 1.2 replaced by a text, so every value of
    type ``bytes`` fails. In that case give it the function's successor. And it logs in without TLS
    if the server, or who is between, says that there is none.
    """
    driver: Any = importlib.import_module("aiomysql.connection")
    log_in = driver.Connection._request_authentication  # noqa: SLF001 - nothing public decides it
    if not hasattr(log_in, "__wrapped__"):

        @functools.wraps(log_in)
        async def log_in_by_tls(connection: Any) -> None:
            offered = connection.server_capabilities & driver.CLIENT.SSL
            if connection._ssl_context and not offered:  # noqa: SLF001 - the same
                raise driver.OperationalError(2026, "The server offers no TLS, but ssl is required")
            await log_in(connection)

        driver.Connection._request_authentication = log_in_by_tls  # noqa: SLF001 - the same
    if not callable(getattr(driver, "escape_bytes_prefixed", None)):
        converters: Any = importlib.import_module("pymysql.converters")
        driver.escape_bytes_prefixed = converters.escape_bytes


def _mend_ping(dialect: Dialect) -> None:
    """Let SQLAlchemy 2.0 ask whether a connection is alive.

    Its older releases call the ping of their own adapter as PyMySQL's, which needs no argument
    from version 1.2 on. Theirs does.
    """
    module = importlib.import_module(f"sqlalchemy.dialects.mysql.{dialect.driver}")
    adapter = getattr(module, f"AsyncAdapt_{dialect.driver}_connection")
    argument = inspect.signature(adapter.ping).parameters["reconnect"]
    if argument.default is inspect.Parameter.empty:
        told: Any = dialect
        told._send_false_to_ping = True  # noqa: SLF001 - nothing public decides it


def open_async_engine(database: Any) -> OpenedEngine:
    """Make the engine of an asynchronous service.

    Args:
        database: an SQLAlchemy URL as text or object, or a user's ``AsyncEngine``.

    Raises:
        TypeError: it is neither.
        ValueError: the URL is not valid, or names a synchronous driver.
        UnsupportedByEngine: the driver is not installed, or does not exist.
    """
    if isinstance(database, AsyncEngine):
        return AsyncEngineForm().beside(database.sync_engine)
    if not isinstance(database, str | URL):
        advice = ": create it with create_async_engine()" if isinstance(database, Engine) else ""
        msg = (
            "database must be an SQLAlchemy URL or an AsyncEngine, not "
            f"{type(database).__name__}{advice}"
        )
        raise TypeError(msg)
    return AsyncEngineForm().open(read_url(database))
