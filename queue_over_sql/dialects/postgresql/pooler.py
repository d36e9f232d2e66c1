"""PostgreSQL behind a pooler, such as PgBouncer, which lends its sessions of the server out.

In transaction mode each transaction may run in another session, and the next client gets what was
set in it. So nothing of a session may be used there: no SET, no LISTEN, and no prepared statements
but where the pooler follows them. Where it does not, psycopg's names of them meet those of other
clients, and a statement of somebody else may run.

A pooler gives its clients a process id that is none of the server's. In which mode it runs it does
not say: two connections are asked in turn whether each keeps its session.
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

from queue_over_sql.dialects.driver_calls import driver_connection
from queue_over_sql.errors import UnsupportedByEngine

_log = logging.getLogger(__name__)

# psycopg's own, so not asked for.
_DEFAULT_THRESHOLD: Final = 5
# How long a connection beside may wait for an answer, where a pooler has no session left for it.
_PATIENCE_SECONDS: Final = 2.0
_SESSION: Final = "SELECT pg_backend_pid()"
_NAME: Final = "queue_over_sql_probe"
_NAMED: Final = f"SELECT count(*) FROM pg_prepared_statements WHERE name = '{_NAME}'"
# A prepared statement that is there already, and one that is not.
_NOT_OURS: Final = frozenset({"42P05", "26000"})
_HOW: Final = (
    'set prepare_threshold=None (create_engine(url, connect_args={"prepare_threshold": None}), or '
    "?prepare_threshold=none in the URL)"
)


class Pooler:
    """What is known of a pooler between this service and the server."""

    shares_sessions = False
    """Whether each transaction may run in another session, which others have used."""
    _follows_statements = True

    def notice(self, connection: Connection) -> None:
        """Find out whether there is one, and prepare nothing on this engine if it shares sessions.

        Raises:
            UnsupportedByEngine: prepared statements are asked for, and it does not follow them.
        """
        if not _is_pooled(connection) or not _shares_sessions(connection):
            return
        self.shares_sessions = True
        _log.info(
            "A pooler shares database sessions, so consumers poll, and the service sets "
            "nothing in a session."
        )
        self._follows_statements = _follows(connection)
        threshold = _threshold(connection)
        if threshold in {None, _DEFAULT_THRESHOLD}:
            _prepare_nothing(connection)
        elif not self._follows_statements:
            raise UnsupportedByEngine(_why_not(threshold))

    def check(self, connection: Connection) -> None:
        """Refuse a caller's connection that prepares what its pooler does not follow.

        Raises:
            UnsupportedByEngine: it does.
        """
        if self.shares_sessions and not self._follows_statements:
            threshold = _threshold(connection)
            if threshold is not None and _is_pooled(connection):
                raise UnsupportedByEngine(_why_not(threshold))

    def refusal_hint(self, error: BaseException | None) -> str:
        """A prepared statement is missing, or somebody else's, where sessions are shared."""
        if getattr(error, "sqlstate", None) not in _NOT_OURS:
            return ""
        return f" (a pooler such as PgBouncer gave this connection another session: {_HOW})"

    @staticmethod
    def unfit_way(error: BaseException | None) -> str | None:
        """PgBouncer in statement mode; only its words, which are never translated, say so."""
        state = getattr(error, "sqlstate", None)
        if state != "08P01" or "statement pooling" not in str(error):
            return None
        return (
            "PgBouncer is in statement mode, which does not support transactions: set "
            "pool_mode=transaction or pool_mode=session for it"
        )


def conninfo_of(connection: Connection) -> str:
    """What a connection of psycopg was made of, whoever made it."""
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
    """Whether who answers is another process than the one that let the connection in."""
    if connection.dialect.driver != "psycopg":
        return False
    return bool(driver_connection(connection).info.backend_pid != _session(connection))


def _session(connection: Connection) -> int:
    session: int = connection.exec_driver_sql(_SESSION).scalar_one()
    return session


def _shares_sessions(connection: Connection) -> bool:
    """Whether two connections meet in one session of the server, or one of them has two.

    Asked in an order in which it shows also where sessions are handed out in turn. Who gets no
    answer takes it for yes, which costs speed and nothing else.
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
    """Whether a prepared statement has a name of the pooler's own at the server."""
    if not importlib.import_module("psycopg").capabilities.has_send_close_prepared():
        # psycopg would take statements away by DEALLOCATE, which no pooler follows.
        return False
    with _beside(connection) as other:
        if other.ask("BEGIN") is None:
            return False
        followed = other.prepare(_NAME, _SESSION) and other.ask(_NAMED) == 0
        if not followed:
            # The next client of this session must not meet it.
            other.ask(f"DEALLOCATE {_NAME}")
        other.ask("ROLLBACK")
        return followed


class _Beside:
    """A second connection, which asks little and never waits for long, also on an event loop."""

    def __init__(self, conninfo: str) -> None:
        self._pq = importlib.import_module("psycopg").pq
        self._link = self._pq.PGconn.connect(conninfo.encode())
        self._works = self._link.status == self._pq.ConnStatus.OK

    def ask(self, statement: str) -> int | None:
        """A number: the answer of a query, 0 of a command; None where there is none."""
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
        deadline = time.monotonic() + _PATIENCE_SECONDS
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
