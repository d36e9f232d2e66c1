"""The database's clock, which says what is past: that of a web server may be wrong."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from queue_over_sql import inside
from queue_over_sql.errors import QueueError
from queue_over_sql.values.durations import instant

if TYPE_CHECKING:
    from queue_over_sql import QueueService

_FRESH_SECONDS: Final = 10.0


class DatabaseClock:
    """The database's clock, read every ten seconds at most. Any thread may use it.

    Args:
        service: a service of the database.
    """

    def __init__(self, service: QueueService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._read: tuple[datetime, float] | None = None

    def now(self) -> datetime:
        """The time in UTC. It reads the clock if the last reading is old, so it may wait.

        While the database does not answer, it goes by the last reading, or by this process's clock.
        """
        if self._read is None or time.monotonic() - self._read[1] > _FRESH_SECONDS:
            with contextlib.suppress(QueueError), self._lock:
                self._read = instant(inside.read_clock(self._service)), time.monotonic()
        return self.at_hand()

    def at_hand(self) -> datetime:
        """The time by the last reading, without waiting for the database."""
        if self._read is None:
            return datetime.now(UTC)
        read, since = self._read
        return read + timedelta(seconds=time.monotonic() - since)
