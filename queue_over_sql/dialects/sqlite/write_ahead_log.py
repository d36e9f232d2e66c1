"""SQLite's write-ahead log, which is kept small."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection

from queue_over_sql.dialects.sqlite.hooks import LOG_BYTES
from queue_over_sql.values.backoff import RateLimit

_log = logging.getLogger(__name__)

LARGE_BYTES: Final = LOG_BYTES
"""A larger log is truncated as soon as nobody reads it."""
ALARMING_BYTES: Final = 256 * 2**20

Run = Callable[[Callable[[Connection], Any]], Any]


class WriteAheadLog:
    """Keeps the log small, and warns if a reader prevents this.

    Args:
        size_of: the size of the log of a connection.
        run: runs an operation on a connection of the service.
        where: the database, for the log.
    """

    def __init__(self, size_of: Callable[[Connection], int | None], run: Run, where: str) -> None:
        self._size_of = size_of
        self._run = run
        self._where = where
        # Copying a large log takes long, and must not take all of the reaper's time.
        self._pace = RateLimit(0.0, ready=True)
        self._lock = threading.Lock()
        self._warned = False

    def bound(self) -> None:
        """Truncate the log if it is large; usually only its size is checked.

        Raises:
            DatabaseUnavailable: the database cannot be reached.
        """
        run = self._run
        size = run(self._size_of) or 0
        if size > LARGE_BYTES and self._pace.due():
            with self._pace.running():
                run(_cut)
            size = run(self._size_of) or 0
        self._watch(size)

    def _watch(self, size: int) -> None:
        with self._lock:
            if size <= LARGE_BYTES:
                self._warned = False
            if size < ALARMING_BYTES or self._warned:
                return
            self._warned = True
        _log.warning(
            "The write-ahead log of %s has %d MiB, because a program has been reading from the "
            "database for a long time. End its transaction, or read its result to the end. To "
            "find the program, run `fuser -v` on the file that ends in '-shm'.",
            self._where,
            size // 2**20,
        )


def _cut(connection: Connection) -> None:
    # TRUNCATE alone would block writers while it copies; this copies beside them.
    busy, there, copied = connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").one()
    if not busy and there == copied:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").close()
