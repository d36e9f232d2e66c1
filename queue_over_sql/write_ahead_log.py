"""The write-ahead log of SQLite, which grows for as long as anybody reads: a chore."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from queue_over_sql.dialects.sqlite_hooks import LOG_BYTES
from queue_over_sql.pacing import Pace
from queue_over_sql.restoring import ReaperReport

if TYPE_CHECKING:
    from queue_over_sql.connections import Connections

_log = logging.getLogger(__name__)

LARGE_BYTES: Final = LOG_BYTES
"""A larger log is cut as soon as nobody reads from it."""
ALARMING_BYTES: Final = 256 * 2**20


class WriteAheadLog:
    """Keeps the log small, and warns of one that nobody can keep small."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        # To copy much of the log takes long, and must not take all of the reaper's time.
        self._pace = Pace(0.0, ready=True)
        self._lock = threading.Lock()
        self._warned = False

    def bound(self) -> ReaperReport:
        """Cut the log where it is large; on a healthy queue only its size is looked at.

        Raises:
            DatabaseUnavailable: the database cannot be reached.
        """
        connections = self._connections
        dialect = connections.dialect
        size = connections.run(dialect.wal_bytes) or 0
        if size > LARGE_BYTES and self._pace.due():
            with self._pace.running():
                connections.run(dialect.cut_wal)
            size = connections.run(dialect.wal_bytes) or 0
        self._watch(size)
        return ReaperReport()

    def _watch(self, size: int) -> None:
        """Warn once of each time that it grows so large."""
        with self._lock:
            if size <= LARGE_BYTES:
                self._warned = False
            if size < ALARMING_BYTES or self._warned:
                return
            self._warned = True
        _log.warning(
            "The write-ahead log of %s has %d MiB, because some program has been reading from the "
            "database all the while: end its transaction, or read its result to the end. "
            "`fuser -v` on the file that ends in '-shm' lists the programs that have it open.",
            self._connections.where,
            size // 2**20,
        )
