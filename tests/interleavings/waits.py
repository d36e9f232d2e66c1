"""Which sessions of a server wait for a lock, by the server's own tables; and their ends."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine

# InnoDB's monitor: information_schema.innodb_trx is refreshed only ten times a second.
_WAITING: Final = re.compile(r"^LOCK WAIT .*?^\w+ thread id (\d+)", re.MULTILINE | re.DOTALL)
# How a session is ended, and what says that it still is there. SQLite has none.
_END: Final = {
    "postgresql": (
        "SELECT pg_terminate_backend({})",
        "SELECT 1 FROM pg_stat_activity WHERE pid = {}",
    ),
    "mysql": ("KILL {}", "SELECT 1 FROM information_schema.processlist WHERE id = {}"),
    "mariadb": ("KILL {}", "SELECT 1 FROM information_schema.processlist WHERE id = {}"),
    "h2": (
        "CALL ABORT_SESSION({})",
        "SELECT 1 FROM INFORMATION_SCHEMA.SESSIONS WHERE SESSION_ID = {}",
    ),
}
_OF_H2: Final = (
    "SELECT w.SESSION_ID FROM INFORMATION_SCHEMA.SESSIONS w JOIN INFORMATION_SCHEMA.SESSIONS b"
    " ON b.SESSION_ID = w.BLOCKER_ID WHERE b.CONTAINS_UNCOMMITTED"
)


class Waits:
    """Asks a server on a connection of its own."""

    def __init__(self, engine: Engine, kind: str) -> None:
        self._ask: Callable[[Connection], set[int]] | None = {
            "postgresql": _on_postgresql,
            "mysql": _on_innodb,
            "mariadb": _on_innodb,
            "h2": _on_h2,
        }.get(kind)
        self._engine, self._kind = engine, kind
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def waiting(self) -> set[int]:
        """The numbers of all sessions that wait now; none where the driver is told instead."""
        return set() if self._ask is None else self._ask(self._connection)

    def end(self, session: int) -> bool:
        """End a session, as a broken network does; returns when the server has undone its work.

        False if there is no server that could end one.
        """
        if not session or self._kind not in _END:
            return False
        # In a thread without a gate: that of a client would stop there.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self._end, *_END[self._kind], session).result()
        return True

    def _end(self, end: str, is_there: str, session: int) -> None:
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as own:
            own.exec_driver_sql(end.format(session)).close()
            while own.exec_driver_sql(is_there.format(session)).first() is not None:
                time.sleep(0.001)

    def close(self) -> None:
        """Ask no more."""
        self._connection.close()


def _numbers(connection: Connection, question: str) -> set[int]:
    rows: Any = connection.exec_driver_sql(question)
    return {int(row[0]) for row in rows}


def _on_postgresql(connection: Connection) -> set[int]:
    return _numbers(connection, "SELECT pid FROM pg_locks WHERE NOT granted")


def _on_innodb(connection: Connection) -> set[int]:
    shown = str(connection.exec_driver_sql("SHOW ENGINE INNODB STATUS").one()[2])
    # What it says of the last deadlock comes before.
    present = shown.rpartition("LIST OF TRANSACTIONS FOR EACH SESSION")[2]
    waiting: set[int] = set()
    for transaction in present.split("---TRANSACTION "):
        if (found := _WAITING.search(transaction)) is not None:
            waiting.add(int(found[1]))
    return waiting


def _on_h2(connection: Connection) -> set[int]:
    return _numbers(connection, _OF_H2)
