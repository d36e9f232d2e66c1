"""What really goes to the database: every statement that a driver sends, with its parameters.

Noted at the drivers, so it does not matter which layers a statement passes on its way there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sqlite3
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclasses.dataclass(frozen=True)
class Sent:
    """One statement, which is one round trip to a server.

    Attributes:
        text: as the driver's cursor was given it; SQLite and PyMySQL have put the values in.
        parameters: what the driver sends beside the text.
    """

    text: str
    parameters: Any = None

    @property
    def verb(self) -> str:
        """The statement's first word; psycopg asks with an empty one whether anybody is there."""
        return self.without_settings.strip("; ").partition(" ")[0].upper() or "PING"

    @property
    def without_settings(self) -> str:
        """The statement without the settings that MariaDB lets it begin with."""
        return re.sub(r"^SET STATEMENT .+? FOR ", "", self.text)


class Traffic:
    """Notes what all connections send that were opened while it listens."""

    def __init__(self) -> None:
        self._sent: list[Sent] | None = None

    @contextlib.contextmanager
    def noted(self) -> Iterator[list[Sent]]:
        """What is sent meanwhile, by whatever thread, in order."""
        outer, self._sent = self._sent, []
        try:
            yield self._sent
        finally:
            self._sent = outer

    def of(self, operation: Callable[[], object]) -> list[Sent]:
        """What an operation sends."""
        with self.noted() as sent:
            operation()
        return sent

    def note(self, text: Any, parameters: Any = None) -> None:
        """A driver sends something."""
        if self._sent is not None:
            decoded = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
            self._sent.append(Sent(decoded, parameters))


@contextlib.contextmanager
def listening(engine: str) -> Iterator[Traffic]:
    """Listen at the driver of an engine; connections must be opened inside."""
    traffic = Traffic()
    taps = {
        "sqlite": _tap_sqlite,
        "postgresql": _tap_psycopg,
        "mariadb": _tap_pymysql,
        "mysql": _tap_pymysql,
        "h2": _tap_h2,
    }
    with taps[engine](traffic):
        yield traffic


@contextlib.contextmanager
def _tap_sqlite(traffic: Traffic) -> Iterator[None]:
    connect = sqlite3.connect

    def tapped(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(traffic.note)
        return connection

    with mock.patch("sqlite3.dbapi2.connect", tapped):
        yield


@contextlib.contextmanager
def _tap_psycopg(traffic: Traffic) -> Iterator[None]:
    import psycopg

    with contextlib.ExitStack() as stack:
        for name in ("execute", "executemany", "copy"):
            stack.enter_context(_tapped(traffic, psycopg.Cursor, name))
        # BEGIN, COMMIT and ROLLBACK of connections that do not commit by themselves.
        stack.enter_context(_tapped(traffic, psycopg.Connection, "_exec_command"))
        yield


@contextlib.contextmanager
def _tap_pymysql(traffic: Traffic) -> Iterator[None]:
    from pymysql import connections

    # Its type stubs leave this method out.
    connection: Any = connections.Connection
    original = connection._execute_command

    def tapped(self: Any, command: int, sql: Any) -> Any:
        traffic.note(sql or "PING")
        return original(self, command, sql)

    with mock.patch.object(connection, "_execute_command", tapped):
        yield


@contextlib.contextmanager
def _tap_h2(traffic: Traffic) -> Iterator[None]:
    from sqlalchemy_h2 import dbapi

    with (
        _tapped(traffic, dbapi.Cursor, "execute"),
        _tapped(traffic, dbapi.Cursor, "executemany"),
    ):
        yield


def _tapped(traffic: Traffic, owner: Any, name: str) -> Any:
    original = getattr(owner, name)

    def tapped(self: Any, text: Any, *arguments: Any, **options: Any) -> Any:
        traffic.note(text, arguments[0] if arguments else options.get("params"))
        return original(self, text, *arguments, **options)

    return mock.patch.object(owner, name, tapped)
