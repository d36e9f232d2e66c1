"""PEP 249 module for H2: jaydebeapi's classes, with those parts replaced that fail on H2."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import itertools
import random
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jaydebeapi
from jaydebeapi import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004 - the name is PEP 249's
)
from jpype import JException, JVMNotRunning

from sqlalchemy_h2 import jvm
from sqlalchemy_h2.conversion import Layout, Reader, bind
from sqlalchemy_h2.errors import (
    ADMIN_RIGHTS_REQUIRED,
    DISCONNECT_CODES,
    EXCLUSIVE_MODE,
    FILE_CHANGES_HANDS,
    closed_connection,
)
from sqlalchemy_h2.jvm import java_call, tidying_java_call
from sqlalchemy_h2.sockets import number_of

_MOST_LAYOUTS = 256
# What reading a value raises that Python cannot hold.
_UNREADABLE = (ValueError, ArithmeticError)
# A bare star stands for columns that may change while the text does not.
_FIXED_COLUMNS = re.compile(r"\s*SELECT\b(?:[^*]|\(\s*\*\s*\))*", re.IGNORECASE)


class Statements:
    """Prepared Java statements by SQL text, because each preparation is a round trip to a server.

    A statement is not in the cache while a cursor uses it, because running it again would close the
    first cursor's result.
    """

    def __init__(self, jconn: Any, limit: int = 64) -> None:
        self._prepare = jconn.prepareStatement
        self._limit = limit
        self._kept: dict[str, Any] = {}

    def take(self, sql: str) -> Any:
        kept = self._kept.pop(sql, None)
        return self._prepare(sql) if kept is None else kept

    def give_back(self, sql: str, statement: Any) -> None:
        kept = self._kept
        if sql in kept:
            statement.close()
            return
        statement.clearParameters()  # a missing parameter must raise, a large one must be freed
        if len(kept) >= self._limit:
            kept.pop(next(iter(kept))).close()
        kept[sql] = statement

    def clear(self) -> None:
        # Do not close them, because the connection does.
        self._kept.clear()


_WRITE_DELAY = (
    "SELECT SETTING_VALUE FROM INFORMATION_SCHEMA.SETTINGS WHERE SETTING_NAME = 'WRITE_DELAY'"
)

_DEFAULT = 500  # milliseconds


class DurabilityWarning(UserWarning):
    """Commits may be lost when the process that runs H2 is killed."""


def warn_of_late_commits(connection: Connection, user: str) -> None:
    """Warn unless the database writes each commit at once (``WRITE_DELAY`` is 0)."""
    cursor = connection.cursor()
    try:
        delays = [int(row[0]) for row in cursor.execute(_WRITE_DELAY)]
    finally:
        cursor.close()
        connection.rollback()
    delay = max(delays, default=_DEFAULT)  # as set, and as the file has it
    if delay:
        warnings.warn(
            f"H2 writes commits up to {delay} ms late, so a killed server loses them, and user "
            f"{user!r} may not change that. Let an administrator run SET WRITE_DELAY 0 once; the "
            "database stores it",
            DurabilityWarning,
            stacklevel=2,
        )


__all__ = [
    "BINARY",
    "DATETIME",
    "DISCONNECT_CODES",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "Timestamp",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

apilevel = "2.0"
threadsafety = 1
paramstyle = "qmark"
Binary, Date, Time, Timestamp = bytes, dt.date, dt.time, dt.datetime
STRING, BINARY, NUMBER, DATETIME, ROWID = str, bytes, int, dt.datetime, int

_REMOTE = ("jdbc:h2:tcp:", "jdbc:h2:ssl:")
_CONNECT_MILLISECONDS = "10000"
_SHARED = ";AUTO_SERVER=TRUE"
# One attempt takes up to 14 s while many processes open the file at once on a busy machine.
_SHARED_SECONDS = 60.0

_without_admin_rights: set[tuple[str, str]] = set()

# H2 leaves the socket of a failed connection open until Java's next garbage collection, and a
# process that only connects in vain may never have one.
_FAILED_BETWEEN_COLLECTIONS = 20
_failed = itertools.count(1)


def connect(
    url: str,
    user: str = "sa",
    password: str = "",
    *,
    admin_settings: str = "",
    jar: str | None = None,
    jvm_path: str | None = None,
    jvm_args: Sequence[str] = (),
) -> Connection:
    """Open a connection; autocommit is off.

    ``url`` is a JDBC URL. ``admin_settings`` (``;KEY=VALUE...``) are added to it if the user has
    admin rights; otherwise they are left out, and delayed commits raise a warning. The other
    arguments are those of :func:`.jvm.start`. Raises OperationalError when H2 refuses, and
    InterfaceError when the jar or Java is missing.
    """
    jvm.start(jar, jvm_path, tuple(jvm_args))
    if (url, user) in _without_admin_rights:
        return Connection(url, user, password)
    try:
        return Connection(url + admin_settings, user, password)
    except DatabaseError as error:
        if not admin_settings or getattr(error, "code", 0) != ADMIN_RIGHTS_REQUIRED:
            raise
    connection = Connection(url, user, password)
    _without_admin_rights.add((url, user))
    warn_of_late_commits(connection, user)
    return connection


class Connection(jaydebeapi.Connection):  # type: ignore[misc]
    """A connection to H2; ``jconn`` is its ``java.sql.Connection``."""

    jconn: Any
    reaches_out = False
    _closed: bool

    def __init__(self, url: str, user: str, password: str) -> None:
        super().__init__(None, None)
        self._open_in_turn(url, user, password)
        self.statements = Statements(self.jconn)
        # By SQL text, so that not every execution must read names and types.
        self.layouts: dict[str, Layout] = {}
        self.stand_in: Callable[[Exception], Any] | None = None
        """Makes what stands in a row for a value that Python cannot hold; None: raise DataError."""

    def _open_in_turn(self, url: str, user: str, password: str) -> None:
        """Open it; wait while another process alters a table, or opens or closes a shared file.

        H2 refuses at once in exclusive mode, and if the lock file has just been written.
        """
        deadline = time.monotonic() + _SHARED_SECONDS
        while True:
            try:
                return self._open(url, user, password)
            except DatabaseError as error:
                code, is_shared = getattr(error, "code", 0), _SHARED in url.upper()
                passes = code == EXCLUSIVE_MODE or (is_shared and code in FILE_CHANGES_HANDS)
                if not passes or time.monotonic() > deadline:
                    raise
            time.sleep(random.uniform(0.02, 0.2))  # noqa: S311 - spreads them, guards nothing

    @java_call
    def _open(self, url: str, user: str, password: str) -> None:
        java = jvm.java()
        properties = java.Properties()
        properties.setProperty("user", user)
        properties.setProperty("password", password)
        bounded = url.startswith(_REMOTE) and "NETWORK_TIMEOUT=" not in url
        if bounded:
            # H2's own timeout only covers the TCP connect, not the server's answer.
            properties.setProperty("NETWORK_TIMEOUT", _CONNECT_MILLISECONDS)
        self.reaches_out = url.startswith(_REMOTE)
        # Use the driver itself, because DriverManager hides drivers of a foreign class loader.
        try:
            self.jconn = java.Driver().connect(url, properties)
        except JException:
            if self.reaches_out and next(_failed) % _FAILED_BETWEEN_COLLECTIONS == 0:
                java.System.gc()
            raise
        self.reaches_out = False
        self.jconn.setAutoCommit(False)
        if bounded:
            # Statements may take any time.
            for socket in self._sockets():
                socket.setSoTimeout(0)

    @java_call
    def fileno(self) -> int:
        """The number of the socket to the server; OSError if there is not one, or off Linux."""
        sockets = self._sockets()
        if len(sockets) != 1:
            raise OSError(errno.ENOTSOCK, f"this connection to H2 has {len(sockets)} sockets")
        return number_of(sockets[0])

    @java_call
    def has_network(self) -> bool:
        """Whether there is a server at the other end, and not an embedded database."""
        return bool(self._sockets())

    def sever(self) -> None:
        """Close the sockets, from any thread, so that waiting statements fail."""
        # A connection that is just being closed has no sockets any more.
        with contextlib.suppress(Error):
            self._sever()

    @tidying_java_call
    def _sever(self) -> None:
        for socket in self._sockets():
            socket.close()

    def _sockets(self) -> list[Any]:
        """The sockets to the servers; H2's own ways to close them wait for the statement."""
        session = self.usable().getSession()
        if session.getClass().getName() != "org.h2.engine.SessionRemote":
            return []
        field = session.getClass().getDeclaredField("transferList")
        field.setAccessible(True)
        return [transfer.getSocket() for transfer in list(field.get(session))]

    def usable(self) -> Any:
        """Return the Java connection; InterfaceError when it was closed."""
        if self._closed:
            raise closed_connection()
        return self.jconn

    def cancel(self) -> None:
        """Do nothing: what a connection does by itself is short."""

    @java_call
    def commit(self) -> None:
        """Commit the transaction; OperationalError when the connection is lost."""
        self.usable().commit()

    @tidying_java_call
    def rollback(self) -> None:
        """Undo the transaction; OperationalError when the connection is lost.

        In a forked child, and in a daemon thread at the end of the process, it does nothing.
        """
        self.usable().rollback()

    def close(self) -> None:
        """Close; a second call does nothing. The last one to close also closes a file.

        Closing a lost connection, or one of the parent process, is no error.
        """
        if not self._closed:
            self._closed = True
            self._close()

    @tidying_java_call
    def _close(self) -> None:
        self.statements.clear()
        with contextlib.suppress(JException, JVMNotRunning):
            self.jconn.close()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def cursor(self) -> Cursor:
        self.usable()
        jvm.check_process()
        return Cursor(self)

    @property
    @java_call
    def autocommit(self) -> bool:
        """Whether each statement commits by itself; setting True commits what is open."""
        return bool(self.usable().getAutoCommit())

    @autocommit.setter
    @java_call
    def autocommit(self, value: bool) -> None:
        self.usable().setAutoCommit(value)


class Cursor(jaydebeapi.Cursor):  # type: ignore[misc]
    """Runs one statement at a time and reads its rows."""

    arraysize = 100
    reaches_out = False
    _connection: Connection | None
    _rs: Any
    _prep: Any

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, None)
        self._statements = connection.statements
        self._layouts = connection.layouts
        self._sql = ""
        self._layout: Layout | None = None
        self._types_known = False

    @property
    def description(self) -> tuple[tuple[Any, ...], ...] | None:
        """Label and JDBC type code of each column of the result, or None without a result."""
        return None if self._layout is None else self._layout.description

    @java_call
    def execute(self, operation: str, parameters: Sequence[Any] | None = None) -> Cursor:
        """Run a statement; the parameters replace its question marks."""
        with self._taking(operation) as statement:
            if parameters:
                bind(statement, parameters)
            if statement.execute():
                self._open_result(operation, statement.getResultSet())
            else:
                self.rowcount = _update_count(statement)
                self._release()
        return self

    @java_call
    def executemany(self, operation: str, seq_of_parameters: Iterable[Sequence[Any]]) -> Cursor:
        """Run a statement once per row of parameters, up to the first that fails."""
        with self._taking(operation) as statement:
            count = 0
            for parameters in seq_of_parameters:
                bind(statement, parameters)
                count += int(statement.executeUpdate())
            self.rowcount = count
            self._release()
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        rows = self._fetch(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        return self._fetch(self.arraysize if size is None else size)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._fetch(-1)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchone, None)

    def close(self) -> None:
        """Free the result; the cursor is of no more use. A second call does nothing."""
        if self._connection is not None:
            if self._prep is not None and jvm.possible():
                self._release()
            self._connection = None

    def cancel(self) -> None:
        """Ask the statement that another thread runs to stop; it then raises 57014."""
        statement = self._prep
        if statement is not None:
            statement.cancel()

    @contextlib.contextmanager
    def _taking(self, sql: str) -> Iterator[Any]:
        if self._connection is None:
            raise InterfaceError("the cursor is closed")
        self._connection.usable()
        self._release()
        self.rowcount = -1
        self._layout = None
        self._sql = sql
        self._prep = self._statements.take(sql)
        try:
            yield self._prep
        except BaseException:
            self._drop()
            raise

    def _open_result(self, sql: str, result: Any) -> None:
        self._rs = result
        # Its labels are valid, but its types may have been altered.
        known = self._layouts.get(sql)
        self._types_known = known is None
        self._layout = self._learned(sql, result) if known is None else known

    def _check_types(self, layout: Layout, result: Any) -> Layout:
        self._types_known = True
        if layout.still_fits(result.getMetaData()):
            return layout
        self._layout = self._learned(self._sql, result)
        return self._layout

    def _learned(self, sql: str, result: Any) -> Layout:
        layout = Layout.of(result.getMetaData())
        if _FIXED_COLUMNS.fullmatch(sql):
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[sql] = layout
        return layout

    @java_call
    def _fetch(self, limit: int) -> list[tuple[Any, ...]]:
        result, layout = self._rs, self._layout
        if result is None or layout is None:
            raise ProgrammingError("the last statement has no rows to fetch")
        rows: list[tuple[Any, ...]] = []
        try:
            while len(rows) != limit and result.next():
                if not self._types_known:
                    layout = self._check_types(layout, result)
                try:
                    row = tuple([read(result, column) for read, column in layout.readers])
                except _UNREADABLE:
                    row = tuple([self._read(*reader, result) for reader in layout.readers])
                rows.append(row)
        except _UNREADABLE as error:
            raise DataError(f"H2 returned a value that Python cannot represent: {error}") from error
        return rows

    def _read(self, read: Reader, column: int, result: Any) -> Any:
        stand_in = None if self._connection is None else self._connection.stand_in
        if stand_in is None:
            return read(result, column)
        try:
            return read(result, column)
        except _UNREADABLE as error:
            return stand_in(error)

    @java_call
    def _release(self) -> None:
        result, statement, connection = self._rs, self._prep, self._connection
        self._rs = self._prep = None
        if statement is None or connection is None or connection.is_closed:
            return
        try:
            if result is not None:
                result.close()
            self._statements.give_back(self._sql, statement)
        except (JException, JVMNotRunning):  # the connection is lost; the next statement will raise
            self._statements.clear()

    def _drop(self) -> None:
        statement = self._prep
        self._rs = self._prep = None
        if statement is not None:
            with contextlib.suppress(JException, JVMNotRunning):
                statement.close()


def _update_count(statement: Any) -> int:
    try:
        return int(statement.getUpdateCount())
    except JException:  # impossible after SHUTDOWN
        return -1
