"""Outages: one line in the log when the database goes away, and one when it is back."""

from __future__ import annotations

import logging
import threading
import time

_log = logging.getLogger(__name__)


class Outage:
    """Tells of a database that went away once, however many threads and tries notice.

    Args:
        who: who waits, for the log.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._since: float | None = None
        self._lock = threading.Lock()

    def began(self, error: Exception) -> None:
        """The database could not be reached."""
        with self._lock:
            if self._since is not None:
                return
            self._since = time.monotonic()
        _log.warning("%s waits for the database: %s", self._who, " ".join(str(error).split()))

    def ended(self) -> None:
        """The database answered."""
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            _log.info("%s goes on: back after %.1f s.", self._who, time.monotonic() - since)
