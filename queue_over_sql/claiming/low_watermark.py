"""The low watermark: the due time from which a claim looks for messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from queue_over_sql.database.forks import shared_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queue_over_sql.message import MessageRow


SLACK_US = 100_000
"""The slack of the low watermark, in microseconds, for publishers that commit out of order."""


# A full look is cheap if it costs at most this much more than a bounded one. Otherwise full looks
# take at most about a twentieth of the time.
_CHEAP_SECONDS = 0.002


_FULL_LOOK_SHARE = 20


_LEAST_PAUSE = 0.02


_LOADED_PAUSE = 1.0


# Even an expensive full look is repeated after this time.
_LONGEST_PAUSE = 10.0


class LowWatermark:
    """Where the claims of one priority level of one queue start; threads of a consumer share it.

    On PostgreSQL a claim would read the dead index entries of finished messages, and their number
    has no limit while a transaction holds back the vacuum. InnoDB has unpurged rows. So a claim
    starts at the largest ``available_at`` that this consumer has claimed, less a slack for
    publishers that commit out of order. A *full look* finds what lies below. Claims make one
    whenever it is cheap.
    """

    def __init__(self) -> None:
        self._lock = shared_lock()
        self._low = 0
        self._short = True
        self._looked_at = float("-inf")
        self._full_costs = (float("inf"), float("inf"))
        self._bounded_cost = float("inf")

    @property
    def idle(self) -> bool:
        """Whether the last claim found less than it asked for."""
        return self._short

    def bound(self) -> int:
        """Where the next claim starts, in microseconds; 0 for a full look."""
        with self._lock:
            pause = self._pause() if self._short else max(_LOADED_PAUSE, self._pause())
            return 0 if time.monotonic() - self._looked_at >= pause else self._low

    def may_look_fully(self) -> bool:
        """Whether a claim that found nothing above the watermark may look below it at once."""
        with self._lock:
            return time.monotonic() - self._looked_at >= self._pause()

    def claimed(self, rows: Sequence[MessageRow], wanted: int, low: int, seconds: float) -> None:
        """Note a claim: the rows found of ``wanted`` ones, its start, and its duration."""
        latest = max((row.available_at or 0 for row in rows), default=0)
        self.noted(len(rows), latest, wanted, low, seconds)

    def noted(self, found: int, latest: int, wanted: int, low: int, seconds: float) -> None:
        """As ``claimed``, for a number of messages.

        ``latest`` is the due time up to which nothing is left to be claimed; 0 if none was found.
        """
        with self._lock:
            self._short = found < wanted
            if low:
                self._bounded_cost = min(seconds, self._bounded_cost * 1.1)
            else:
                now = time.monotonic()
                # Threads that waited together for one lock must not count as several slow looks.
                if now - seconds >= self._looked_at:
                    self._full_costs = (self._full_costs[1], seconds)
                self._looked_at = now
            if latest:
                self._low = max(0, latest - SLACK_US)

    def lower(self, available_at: int | None = None) -> None:
        """Lower the watermark to where messages came back; None: make a full look next."""
        with self._lock:
            self._low = 0 if available_at is None else min(self._low, available_at)

    def _pause(self) -> float:
        """How long to wait between two full looks.

        One slow measurement may be an exception, so the cheaper of the last two counts. A single
        one does not count, because it includes the preparation of the statement.
        """
        cost = min(self._full_costs)
        if max(self._full_costs) == float("inf"):
            return 0.0
        usual = 0.0 if self._bounded_cost == float("inf") else self._bounded_cost
        if cost - usual <= _CHEAP_SECONDS:
            return 0.0
        return min(_LONGEST_PAUSE, max(_LEAST_PAUSE, _FULL_LOOK_SHARE * cost))
