"""PostgreSQL behind a pooler, such as PgBouncer, which lends out server sessions.

In transaction mode each transaction may run in another session, and the next client gets the
settings of this one. So sessions must not be used: no SET, no LISTEN, and no prepared statements
unless the pooler tracks them. Otherwise psycopg's names collide with those of other clients, and
another client's statement may run.

A pooler gives its clients process ids that differ from the server's. It does not tell its mode, so
two connections are asked in turn whether each keeps its session.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import select
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from sqlalchemy import Connection, event

from queue_over_sql.errors import UnsupportedByEngine
from queue_over_sql.sql.driver_calls import driver_connection

_log = logging.getLogger(__name__)

# psycopg's own default, which the user did not choose.
_DEFAULT_THRESHOLD: Final = 5
# How long a second connection may wait for an answer, if the pooler has no free session.
_TIMEOUT_SECONDS: Final = 2.0
_SESSION: Final = "SELECT pg_backend_pid()"
_NAME: Final = "queue_over_sql_probe"
_NAMED: Final = f"SELECT count(*) FROM pg_prepared_statements WHERE name = '{_NAME}'"
# A prepared statement that already exists, and one that does not.
_NOT_OURS: Final = frozenset({"42P05", "26000"})
_HOW: Final = (
    'set prepare_threshold=None (create_engine(url, connect_args={"prepare_threshold": None}), or '
    "?prepare_threshold=none in the URL)"
)


class Pooler:
    """A pooler between this service and the server."""

    shares_sessions = False
    """Whether each transaction may run in another session, which others also use."""
    _follows_statements = True

    def notice(self, connection: Connection) -> None:
        """Find out whether there is one; prepare nothing on this engine if it shares sessions.

        Raises:
            UnsupportedByEngine: prepared statements were requested, and it does not track them.
        """
        if not _is_pooled(connection) or not _shares_sessions(connection):
            return
        self.shares_sessions = True
        _log.info(
            "The connection goes through a pooler that shares database sessions. So consumers "
            "poll, and the service changes no session settings."
        )
        self._follows_statements = _follows(connection)
        threshold = _threshold(connection)
        if threshold in {None, _DEFAULT_THRESHOLD}:
            _prepare_nothing(connection)
        elif not self._follows_statements:
            raise UnsupportedByEngine(_why_not(threshold))

    def check(self, connection: Connection) -> None:
        """Refuse a caller's connection that prepares statements its pooler does not track.

        Raises:
            UnsupportedByEngine: it does so.
        """
        if self.shares_sessions and not self._follows_statements:
            threshold = _threshold(connection)
            if threshold is not None and _is_pooled(connection):
                raise UnsupportedByEngine(_why_not(threshold))

    def refusal_hint(self, error: BaseException | None) -> str:
        """A prepared statement is missing, or another client's, because sessions are shared."""
        if getattr(error, "sqlstate", None) not in _NOT_OURS:
            return ""
        return f" (a pooler such as PgBouncer gave this connection another session: {_HOW})"

    @staticmethod
    def unfit_way(error: BaseException | None) -> str | None:
        """PgBouncer in statement mode; only its text, which is never translated, says so."""
        state = getattr(error, "sqlstate", None)
        if state != "08P01" or "statement pooling" not in str(error):
            return None
        return (
            "PgBouncer is in statement mode, which does not support transactions: set "
            "pool_mode=transaction or pool_mode=session for it"
        )


def conninfo_of(connection: Connection) -> str:
    """The parameters with which a psycopg connection was opened."""
    info = driver_connection(connection).info
    arguments = {**info.get_parameters(), "password": info.password or None}
    made: str = importlib.import_module("psycopg.conninfo").make_conninfo(**arguments)
    return made


def _threshold(connection: Connection) -> int | None:
    if connection.dialect.driver != "psycopg":
        return None
    threshold: int | None = driver_connection(connection).prepare_threshold
    return threshold


def _prepare_nothing(connection: Connection) -> None:
    dialect = connection.dialect

    def prepare_nothing(opened: Any, _: Any) -> None:
        dialect.get_driver_connection(opened).prepare_threshold = None

    prepare_nothing(connection.connection.dbapi_connection, None)
    event.listen(connection.engine, "connect", prepare_nothing)


def _is_pooled(connection: Connection) -> bool:
    """Whether another process answers than the one that accepted the connection."""
    if connection.dialect.driver != "psycopg":
        return False
    return bool(driver_connection(connection).info.backend_pid != _session(connection))


def _session(connection: Connection) -> int:
    session: int = connection.exec_driver_sql(_SESSION).scalar_one()
    return session


def _shares_sessions(connection: Connection) -> bool:
    """Whether two connections use the same server session, or one of them uses two.

    The order of the queries also detects sessions that are assigned in turn. No answer counts as
    yes, which costs only speed.
    """
    connection.rollback()
    with _beside(connection) as other:
        ours = {_session(connection)}
        connection.rollback()
        theirs = {other.ask(_SESSION), other.ask(_SESSION)}
        ours.add(_session(connection))
        connection.rollback()
    return len(ours) > 1 or len(theirs) > 1 or None in theirs or bool(ours & theirs)


def _follows(connection: Connection) -> bool:
    """Whether a prepared statement has the pooler's own name on the server."""
    if not importlib.import_module("psycopg").capabilities.has_send_close_prepared():
        # psycopg would remove statements by DEALLOCATE, which no pooler tracks.
        return False
    with _beside(connection) as other:
        if other.ask("BEGIN") is None:
            return False
        followed = other.prepare(_NAME, _SESSION) and other.ask(_NAMED) == 0
        if not followed:
            # The next client of this session must not find it.
            other.ask(f"DEALLOCATE {_NAME}")
        other.ask("ROLLBACK")
        return followed


class _Beside:
    """A second connection for a few queries with a short time limit, also on an event loop."""

    def __init__(self, conninfo: str) -> None:
        self._pq = importlib.import_module("psycopg").pq
        self._link = self._pq.PGconn.connect(conninfo.encode())
        self._works = self._link.status == self._pq.ConnStatus.OK

    def ask(self, statement: str) -> int | None:
        """The number that a query returns, 0 for a command; None if there is no answer."""
        result = self._answer(lambda: self._link.send_query(statement.encode()))
        if result is None:
            return None
        return int(result.get_value(0, 0)) if result.ntuples else 0

    def prepare(self, name: str, statement: str) -> bool:
        """Whether a statement could be prepared."""
        send = self._link.send_prepare
        return self._answer(lambda: send(name.encode(), statement.encode())) is not None

    def close(self) -> None:
        self._link.finish()

    def _answer(self, send: Callable[[], None]) -> Any:
        if not self._works:
            return None
        send()
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        found: Any = None
        while self._arrived(deadline) and (result := self._link.get_result()) is not None:
            found = result
        if not self._works or found is None or found.status == self._pq.ExecStatus.FATAL_ERROR:
            return None
        return found

    def _arrived(self, deadline: float) -> bool:
        while self._link.is_busy():
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._link.socket], [], [], left)[0]:
                self._works = False
                return False
            self._link.consume_input()
        return True


@contextlib.contextmanager
def _beside(connection: Connection) -> Iterator[_Beside]:
    beside = _Beside(conninfo_of(connection))
    try:
        yield beside
    finally:
        beside.close()


def _why_not(threshold: Any) -> str:
    return (
        f"Prepared statements are on (prepare_threshold={threshold}), but a pooler such as "
        "PgBouncer in transaction mode gives each transaction another session, and this one does "
        f"not support prepared statements: {_HOW}, or enable them in PgBouncer 1.22 or newer "
        "(max_prepared_statements)"
    )
