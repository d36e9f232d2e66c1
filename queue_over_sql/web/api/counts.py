"""Counts: of a queue, made once for all who ask."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from queue_over_sql.queues.admin import QueueStats

# What clients are told of a queue at once, they are told of one look.
_STATS_SECONDS: Final = 2.0
_MOST_STATS: Final = 1_000


class SharedStats:
    """Counts of queues, which all who ask within two seconds share."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, tuple[float, QueueStats]] = OrderedDict()
        self._looking: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def of(self, name: str, look: Callable[[], QueueStats]) -> QueueStats:
        """The counts of a queue."""
        with self._lock:
            looking = self._looking.setdefault(name, threading.Lock())
        with looking:
            found = self._found.get(name)
            if found is None or time.monotonic() - found[0] > _STATS_SECONDS:
                # From its end on: a count that takes long is not repeated at once.
                stats = look()
                found = time.monotonic(), stats
                with self._lock:
                    self._found[name] = found
                    while len(self._found) > _MOST_STATS:
                        gone, _ = self._found.popitem(last=False)
                        self._looking.pop(gone, None)
            return found[1]
