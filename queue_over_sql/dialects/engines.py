"""From the caller's URL or ``Engine`` to our own engine.

A user's ``Engine`` is never changed. We make our own engine that opens connections in the same way.
So our pool, hooks and isolation are separate, and an exhausted pool of the user cannot stop our
heartbeats.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.dialects import registry
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import Pool, QueuePool, StaticPool
from sqlalchemy.util import asbool

from queue_over_sql.dialects.base import ErrorKind, QueueDialect
from queue_over_sql.dialects.driver_calls import KEEPALIVES
from queue_over_sql.dialects.forks import ForkGuard, NoForkGuard
from queue_over_sql.dialects.sqlite.write_lock import NoWriteLock, WriteLock
from queue_over_sql.errors import DatabaseUnavailable, UnsupportedByEngine

# Drivers also accept a password as a parameter of the URL: password, passwd, sslpassword.
_SECRET: Final = re.compile(r"passw|pwd", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(?P<before>\w[\w+]*://[^:/\s]*:)(?P<password>(?:(?!://)\S)+)(?=@)")
_PASSWORD_IN_QUERY = re.compile(
    r"(?P<before>\b(?:password|passwd|pwd)=)(?P<password>[^&;\s'\"]+)", re.IGNORECASE
)

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
_AUTOCOMMIT: Mapping[str, Any] = {"isolation_level": "AUTOCOMMIT"}
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
# READ COMMITTED avoids gap locks between claims, handlers and publishers.
_OWN_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "mysql": {"isolation_level": "READ COMMITTED"},
    "mariadb": {"isolation_level": "READ COMMITTED"},
}
_BYTES: Final = (
    "SQLAlchemy cannot use this engine, because it gives bytes for texts, as in a database with "
    "the encoding SQL_ASCII: create it with connect_args={'client_encoding': 'utf8'}."
)
_PATIENCE_OF_DRIVERS: Mapping[str, Mapping[str, Any]] = {
    "postgresql+psycopg": {
        "connect_timeout": _CONNECT_SECONDS,
        # A database with the encoding SQL_ASCII would give texts as bytes.
        "client_encoding": "utf8",
        **KEEPALIVES,
    },
    "mysql+pymysql": _PYMYSQL,
    "mariadb+pymysql": _PYMYSQL,
}


@dataclasses.dataclass(frozen=True, eq=False)
class OpenedEngine:
    """An engine to work with, and how to use it.

    Attributes:
        engine: opens the connections.
        session_options: execution options that turn on autocommit.
        owned: whether we must dispose of it.
        shared: whether all threads share one connection.
        borrowed: whether that connection is the user's, so that nothing may run in the background.
        write_lock: the lock that writers take before the database's own.
        forks: closes the connections before a fork that they do not survive.
    """

    engine: Engine
    session_options: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _AUTOCOMMIT)
    owned: bool = True
    shared: bool = False
    borrowed: bool = False
    write_lock: WriteLock = dataclasses.field(default_factory=NoWriteLock)
    forks: ForkGuard = dataclasses.field(default_factory=NoForkGuard)


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
        arguments = _PATIENCE_OF_DRIVERS.get(url.drivername, {})
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
        return OpenedEngine(engine)

    def beside(self, engine: Engine) -> OpenedEngine:
        """Open our own engine that opens connections as the user's engine does."""
        url = engine.url.set(drivername=f"{engine.dialect.name}+{engine.dialect.driver}")
        if url.get_backend_name() == "sqlite":
            if _in_memory(url):
                return OpenedEngine(engine, {}, owned=False, shared=True, borrowed=True)
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

        return OpenedEngine(self._create_own(url, creator=creator))

    def _create_own(self, url: URL, **options: Any) -> Engine:
        backend = url.get_backend_name()
        own = _OWN_OPTIONS.get(backend, {})
        engine = self.create(url, poolclass=self.pool, **_POOL, **own, **options)
        if backend in {"mysql", "mariadb"}:
            from queue_over_sql.dialects.mysql import hooks  # noqa: PLC0415 - only for MySQL

            hooks.listen(engine)
        if engine.dialect.driver == "psycopg":
            from queue_over_sql.dialects.postgresql import (  # noqa: PLC0415 - only for PostgreSQL
                plain_values,
            )

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

        in_memory = _in_memory(url)
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
            engine, {SESSION_MARK: True}, shared=in_memory, write_lock=write_lock, forks=forks
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


def read_url(database: str | URL) -> URL:
    """Parse the URL of a database.

    Raises:
        ValueError: it is not a URL, its password has an @ that is not escaped, or it is a URI of
            SQLite without ``uri=true``.
    """
    try:
        url = make_url(database)
    except ArgumentError as error:
        msg = "database is not an SQLAlchemy URL; write for example 'sqlite:///queue.db'"
        if str(database).startswith("jdbc:"):
            msg = (
                "database is a JDBC URL, not an SQLAlchemy URL: write "
                "'postgresql://user:password@host/database', without jdbc:"
            )
        raise ValueError(msg) from error
    except ValueError:
        # The reason may contain part of the password, so it is left out.
        msg = "database is an SQLAlchemy URL whose port is not a number"
        raise ValueError(msg) from None
    if "@" in (url.host or "") or _loses_an_at_sign(database):
        # The rest of the password was read as the host, and drivers print the host in their errors.
        msg = "database is an SQLAlchemy URL with more than one @: write %40 for an @ in a password"
        raise ValueError(msg)
    _refuse_uri_as_name(url)
    return url


def _refuse_uri_as_name(url: URL) -> None:
    # SQLite would take the URI for the name of a file. That looks like the database that was meant,
    # but it is another one, and it stays.
    name = url.database or ""
    if url.get_backend_name() != "sqlite" or not name.startswith("file:"):
        return
    # As SQLAlchemy reads this parameter, which would also warn about the others.
    if not asbool(url.query.get("uri", False)):
        msg = (
            f"database is {name!r} without uri=true, so SQLite would create a file of that name: "
            "add uri=true to the parameters of the URL. If this is Django's test database in "
            "memory, use a file for it: 'TEST': {'NAME': 'test.db'} in DATABASES"
        )
        raise ValueError(msg)


def _loses_an_at_sign(database: str | URL) -> bool:
    """Whether parameters without a value, which SQLAlchemy drops, may be part of a password."""
    credentials, _, behind = str(database).partition("@")
    parameters = behind.partition("?")[2].split("&")
    named = isinstance(database, str) and ":" in credentials.partition("://")[2]
    return named and any("@" in each and "=" not in each for each in parameters)


def insist_on_file(url: URL) -> None:
    """Refuse a database whose file does not exist, before it is created empty.

    Raises:
        DatabaseUnavailable: there is no such file.
    """
    if (file := _missing_file(url)) is not None:
        msg = (
            f"The database {shown_url(url)} cannot be reached: there is no file {file} on this "
            "host. Check the path and the working directory. To create the file, run: "
            "queue-over-sql create NAME --create"
        )
        raise DatabaseUnavailable(msg)


def _missing_file(url: URL) -> Path | None:
    if url.get_backend_name() == "h2":
        from queue_over_sql.dialects.h2.driver.dialect import (  # noqa: PLC0415 - only for H2
            database_file,
        )

        file = database_file(url)
        return None if file is None or file.exists() else file
    if url.get_backend_name() != "sqlite" or _in_memory(url):
        return None
    from sqlalchemy.dialects.sqlite.pysqlite import (  # noqa: PLC0415 - only for SQLite
        SQLiteDialect_pysqlite,
    )

    # SQLite's own parameters, the same for each driver.
    (name,), options = SQLiteDialect_pysqlite().create_connect_args(url)
    if options.get("uri") and name.startswith("file:"):
        name = unquote(urlsplit(name).path)
    file = Path(name)
    return None if name in {"", ":memory:"} or file.exists() else file.absolute()


def shown_url(url: URL) -> str:
    """A URL for messages, without its password, wherever it is.

    If an @ follows the password, an earlier @ may have been part of it.
    """
    hidden = {name: "***" for name in url.query if _SECRET.search(name)}
    shown = url.update_query_dict(hidden) if hidden else url
    text = shown.render_as_string(hide_password=True).replace("%2A%2A%2A", "***")
    if not _is_doubtful(url):
        return text
    before, password, behind = text.partition(":***@")
    return before + password + behind.replace("%40", "@").rpartition("@")[2]


def hide_passwords(text: str) -> str:
    """A text for people, with all passwords in URLs replaced by ``***``."""
    return _PASSWORD_IN_QUERY.sub(r"\g<before>***", _PASSWORD_IN_URL.sub(r"\g<before>***", text))


def shown_place(url: URL) -> str:
    """Host, port and database of a URL, for messages; without user and password."""
    host = f"{url.host}:{url.port}" if url.port else url.host or ""
    place = f"{host}/{url.database or ''}"
    return place.rpartition("@")[2] if _is_doubtful(url) else place


def shown_reason(url: URL, reason: str) -> str:
    """A driver's reason for a failed connect, for messages, without parts of the password."""
    if not url.host or not _is_doubtful(url):
        return reason
    return re.sub(rf"(?<!\w){re.escape(url.host)}(?!\w)", "***", reason)


def _is_doubtful(url: URL) -> bool:
    """Whether part of the password may have been read as host, database or parameters."""
    behind = (url.host, url.database, *url.query.items())
    return url.password is not None and any("@" in str(part) for part in behind)


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


def dialect_of(connection: Connection) -> QueueDialect:
    """The dialect for the connected server, refined by its version.

    Raises:
        UnsupportedByEngine: the server is too old.
    """
    found = connection.dialect
    name = "mariadb" if getattr(found, "is_mariadb", False) else found.name
    dialect = _dialect_named(name)()
    dialect.refine(connection)
    return dialect


def routines_of(engine: str) -> str | None:
    """An engine's word for stored routines, by the engine's name."""
    return _dialect_named(engine).routines


def hint_for(engine: Engine, error: BaseException | None) -> str:
    """Advice for when the database of this engine cannot be reached."""
    dialect = _dialect_named(engine.dialect.name)()
    is_locked = dialect.classify_driver_error(error) is ErrorKind.TRANSIENT
    return (is_locked and dialect.creation_hint) or dialect.unreachable_hint


def unfit_way(engine: Engine, error: BaseException | None) -> str | None:
    """Why the database of this engine can never be used over this connection."""
    return _dialect_named(engine.dialect.name).unfit_way(error)


# The modules of the dialects; only the one in use is loaded.
_DIALECTS: Final = {
    "sqlite": ("queue_over_sql.dialects.sqlite.dialect", "SQLiteDialect"),
    "postgresql": ("queue_over_sql.dialects.postgresql.dialect", "PostgreSQLDialect"),
    "mysql": ("queue_over_sql.dialects.mysql.dialect", "MySQLDialect"),
    "mariadb": ("queue_over_sql.dialects.mysql.mariadb", "MariaDBDialect"),
    "h2": ("queue_over_sql.dialects.h2.dialect", "H2Dialect"),
}
for _name in ("h2", "h2.jaydebeapi"):
    registry.register(_name, "queue_over_sql.dialects.h2.driver", "H2Dialect")


def _dialect_named(name: str) -> type[QueueDialect]:
    module, attribute = _DIALECTS.get(name, (QueueDialect.__module__, QueueDialect.__name__))
    found: type[QueueDialect] = getattr(importlib.import_module(module), attribute)
    return found


def _in_memory(url: URL) -> bool:
    database = url.database or ""
    return (
        database in {"", ":memory:"}
        or "mode=memory" in database
        or url.query.get("mode") == ("memory")
    )
