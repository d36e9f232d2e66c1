"""PostgreSQL: LISTEN and NOTIFY, through psycopg.

NOTIFY takes a lock at commit, so that only one transaction commits at a time. So a publish sends
its NOTIFY separately, after its commit, and not for each message; see ``database.notify``.

If the server's queue of notifications is full, each transaction with a NOTIFY fails at its commit.
So nothing is sent when it is nearly full, and consumers poll.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, Float, Select, func, literal, select
from sqlalchemy.util import await_only

from queue_over_sql.dialects.postgresql.pooler import Pooler
from queue_over_sql.schema.queue_tables import QueueTables
from queue_over_sql.sql.compiled import StatementCache, run_text
from queue_over_sql.sql.driver_calls import driver_connection, driver_errors
from queue_over_sql.sql.notifications import Notifications, Pause, Watch

CHANNEL: Final = "queue_over_sql"
"""The channel of all queues of a database; the payload is the full name of a queue's table."""


NEARLY_FULL: Final = 0.9
"""The share of the server's queue of notifications from which on nothing is sent."""


class Listening(Watch):
    """A connection that listens, in a thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._driver: Any = driver_connection(connection)
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)  # noqa: FBT003 - its only form
        self._selector = selectors.DefaultSelector()
        with driver_errors(connection, "LISTEN"):
            self._selector.register(self._driver.fileno(), selectors.EVENT_READ)
        self._selector.register(self._ours, selectors.EVENT_READ)

    def wait(self, seconds: float, wanted: Callable[[str], bool]) -> bool:
        # Reads what came together with the answer to LISTEN.
        self._selector.select(seconds)
        with driver_errors(self._connection, "LISTEN"):
            found = more = list(self._driver.notifies(timeout=0))
            while more:
                more = list(self._driver.notifies(timeout=0))
                found += more
            return _any(found, wanted)

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):
            self._theirs.send(b"x")

    def close(self) -> None:
        self._selector.close()
        self._ours.close()
        self._theirs.close()


class ListeningOnLoop(Watch):
    """A connection that listens, in a task."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._driver: Any = driver_connection(connection)

    def wait(self, seconds: float, wanted: Callable[[str], bool]) -> bool:
        async def heard() -> list[Any]:
            notifies = self._driver.notifies
            found = more = [one async for one in notifies(timeout=seconds, stop_after=1)]
            while more:
                more = [one async for one in notifies(timeout=0)]
                found += more
            return found

        with driver_errors(self._connection, "LISTEN"):
            return _any(await_only(heard()), wanted)


class ListenNotify(Notifications):
    """PostgreSQL's notifications between processes."""

    notified_by_others = True
    notifies_others = True

    def __init__(self, pooler: Pooler) -> None:
        self._pooler = pooler

    def watch(self, connection: Connection, pause: Pause) -> Watch | None:
        """Listen, if the driver is psycopg and no pooler shares the session."""
        if connection.dialect.driver != "psycopg" or self._pooler.shares_sessions:
            return None
        run_text(connection, f"LISTEN {CHANNEL}").close()
        return ListeningOnLoop(connection) if connection.dialect.is_async else Listening(connection)

    def notify(self, connection: Connection, sql: StatementCache) -> None:
        sql.get(notify).run(connection).close()


def notify(tables: QueueTables) -> Select[Any]:
    """Notify listeners that a queue may have got messages, if the server has room for it."""
    return select(func.pg_notify(literal(CHANNEL), literal(tables.live.fullname))).where(
        func.pg_notification_queue_usage() < literal(NEARLY_FULL, Float())
    )


def _any(notifications: Any, wanted: Callable[[str], bool]) -> bool:
    # Read all of them, so that the next wait does not begin with old ones.
    return True in {wanted(one.payload) for one in notifications}
