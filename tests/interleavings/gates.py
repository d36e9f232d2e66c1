"""Gates at the drivers: a client's thread stops before each statement until it is let go.

It does not matter which layers a statement passes on its way there. Threads without a gate pass.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# What changes and reads nothing that others see: to stop there would only repeat schedules. The
# first statement of a transaction takes its snapshot, not BEGIN, except on SQLite.
_PASSES: Final = re.compile(
    r"(SET|RESET|BEGIN|START TRANSACTION|SAVEPOINT|RELEASE|PRAGMA|SELECT 1(?! FROM)|SHOW)\b"
    r"(?! IMMEDIATE)|$",
    re.IGNORECASE,
)


class Gate(Protocol):
    """Where one thread stops."""

    def stop(self, session: Callable[[], int], statement: str) -> None:
        """Wait to be let go; ``session`` is the server's number of the connection."""

    def busy(self) -> None:
        """Note that the database is locked, and that the same statement comes again."""


_here = threading.local()


@contextlib.contextmanager
def gated(gate: Gate) -> Iterator[None]:
    """Let this thread stop at a gate."""
    _here.gate = gate
    try:
        yield
    finally:
        _here.gate = None


def stop(session: Callable[[], int], statement: Any) -> None:
    """Stop before a statement, if this thread has a gate."""
    gate: Gate | None = getattr(_here, "gate", None)
    if gate is None:
        return
    text = statement.decode(errors="replace") if isinstance(statement, bytes) else str(statement)
    text = " ".join(text.split()).strip("; ")
    if not _PASSES.match(text):
        gate.stop(session, text)


@contextlib.contextmanager
def at(engine: str) -> Iterator[None]:
    """Put gates before the driver of an engine; connections must be opened inside."""
    drivers = {
        "sqlite": _at_sqlite,
        "postgresql": _at_psycopg,
        "mariadb": _at_pymysql,
        "mysql": _at_pymysql,
        "h2": _at_h2,
    }
    with drivers[engine]():
        yield


def _no_session() -> int:
    return 0


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, *parameters: Any) -> Any:
        return self._run(sql, lambda: super(_Cursor, self).execute(sql, *parameters))

    def executemany(self, sql: str, parameters: Any) -> Any:
        return self._run(sql, lambda: super(_Cursor, self).executemany(sql, parameters))

    def _run(self, sql: str, do: Callable[[], Any]) -> Any:
        connection: Any = self.connection
        while True:
            read_before = connection.in_transaction
            # Whoever has the lock is alone until the end of the transaction.
            if not (read_before and connection.locks):
                stop(_no_session, sql)
            if not read_before:
                connection.locks = sql.upper().startswith("BEGIN IMMEDIATE")
            if sql.upper().startswith(("COMMIT", "ROLLBACK")):
                stop(_no_session, sql)
            try:
                return do()
            except sqlite3.OperationalError as error:
                gate: Gate | None = getattr(_here, "gate", None)
                if gate is None or error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
                gate.busy()
                # SQLite waits by itself only where nothing was read in the transaction before.
                if not connection.patient or read_before:
                    raise


class _Connection(sqlite3.Connection):
    patient: bool
    locks = False

    def cursor(self, factory: Any = _Cursor) -> Any:
        return super().cursor(factory)

    def commit(self) -> None:
        self._end("COMMIT", super().commit)

    def rollback(self) -> None:
        self._end("ROLLBACK", super().rollback)

    def _end(self, how: str, do: Callable[[], None]) -> None:
        if self.in_transaction:
            stop(_no_session, how)
        do()


@contextlib.contextmanager
def _at_sqlite() -> Iterator[None]:
    connect = sqlite3.connect

    def gated_connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        # Its busy handler sleeps: the gate waits instead.
        patient = options.pop("timeout", 5.0) > 0
        options |= {"timeout": 0, "factory": _Connection}
        connection: Any = connect(*arguments, **options)
        connection.patient = patient
        found: sqlite3.Connection = connection
        return found

    with mock.patch("sqlite3.dbapi2.connect", gated_connect):
        yield


@contextlib.contextmanager
def _at_psycopg() -> Iterator[None]:
    import psycopg

    def of_cursor(cursor: Any) -> Callable[[], int]:
        return lambda: int(cursor.connection.info.backend_pid)

    def of_connection(connection: Any) -> Callable[[], int]:
        return lambda: int(connection.info.backend_pid)

    with contextlib.ExitStack() as stack:
        for name in ("execute", "executemany", "copy"):
            stack.enter_context(_before(psycopg.Cursor, name, of_cursor))
        # COMMIT and ROLLBACK of connections that do not commit by themselves.
        stack.enter_context(_before(psycopg.Connection, "_exec_command", of_connection))
        yield


@contextlib.contextmanager
def _at_pymysql() -> Iterator[None]:
    from pymysql import connections

    # Its type stubs leave this method out.
    connection: Any = connections.Connection
    original = connection._execute_command

    def stopping(self: Any, command: int, sql: Any) -> Any:
        stop(lambda: int(self.thread_id()), sql or "")
        return original(self, command, sql)

    with mock.patch.object(connection, "_execute_command", stopping):
        yield


@contextlib.contextmanager
def _at_h2() -> Iterator[None]:
    from sqlalchemy_h2 import dbapi

    def of_cursor(cursor: Any) -> Callable[[], int]:
        return lambda: _h2_session(cursor._connection)

    def of_connection(connection: Any) -> Callable[[], int]:
        return lambda: _h2_session(connection)

    with contextlib.ExitStack() as stack:
        for name in ("execute", "executemany"):
            stack.enter_context(_before(dbapi.Cursor, name, of_cursor))
        for name in ("commit", "rollback"):
            stack.enter_context(_before(dbapi.Connection, name, of_connection, name.upper()))
        yield


def _h2_session(connection: Any) -> int:
    known = getattr(connection, "session_number", None)
    if known is None:
        statement = connection.jconn.createStatement()
        rows = statement.executeQuery("SELECT SESSION_ID()")
        rows.next()
        known = connection.session_number = int(rows.getInt(1))
        statement.close()
    return int(known)


def _before(
    owner: Any, name: str, session: Callable[[Any], Callable[[], int]], text: str | None = None
) -> Any:
    original = getattr(owner, name)

    def stopping(self: Any, *arguments: Any, **options: Any) -> Any:
        stop(session(self), arguments[0] if text is None else text)
        return original(self, *arguments, **options)

    return mock.patch.object(owner, name, stopping)
