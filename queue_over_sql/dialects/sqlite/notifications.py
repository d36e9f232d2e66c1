"""SQLite: waiting consumers watch the file's data version, which each commit of others changes.

https://www.sqlite.org/pragma.html#pragma_data_version
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection

from queue_over_sql.sql.compiled import run_text
from queue_over_sql.sql.notifications import Notifications, Pause, Watch

# A check takes some microseconds.
_STEP: Final = 0.003
# A file that changes all the time, perhaps for other queues, is checked less often.
_LONGEST_REST: Final = 0.05


class DataVersion(Watch):
    """The data version of one file."""

    bursts = False

    def __init__(self, connection: Connection, pause: Pause) -> None:
        self._connection = connection
        self._pause = pause
        self._version = self._read()
        self._changed_at = float("-inf")
        self._rest = _STEP
        self._over = False

    def wait(self, seconds: float, wanted: Callable[[str], bool]) -> bool:
        """Check every few milliseconds; less often if the file keeps changing."""
        deadline = time.monotonic() + seconds
        while True:
            version = self._read()
            now = time.monotonic()
            if version != self._version:
                self._version = version
                often = now - self._changed_at < 2 * self._rest
                self._rest = min(_LONGEST_REST, 1.5 * self._rest) if often else _STEP
                self._changed_at = now
                return True
            if now >= deadline or self._over:
                return False
            rested = now - self._changed_at >= self._rest
            self._pause(_STEP if rested else self._rest)

    def interrupt(self) -> None:
        self._over = True

    def _read(self) -> Any:
        return run_text(self._connection, "PRAGMA data_version").scalar()


class FileNotifications(Notifications):
    """SQLite's notifications between processes."""

    notified_by_others = True

    def watch(self, connection: Connection, pause: Pause) -> DataVersion:
        return DataVersion(connection, pause)
