"""Counts of a queue, shared by all requests at the same time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from queue_over_sql import QueueStats

# For this many seconds all clients get the same counts.
_STATS_SECONDS: Final = 2.0
_MOST_STATS: Final = 1_000


class SharedStats:
    """Counts of queues, which all requests within two seconds share; for one event loop.

    A request that waits for another's count uses no thread.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[str, tuple[float, QueueStats]] = OrderedDict()
        self._counting: dict[str, anyio.Lock] = {}

    async def of(self, name: str, count: Callable[[], Awaitable[QueueStats]]) -> QueueStats:
        """The counts of a queue."""
        try:
            return await self._of(name, count)
        finally:
            if name not in self._found:
                # After a failure, forget it, so that unknown names are not remembered.
                self._counting.pop(name, None)

    async def _of(self, name: str, count: Callable[[], Awaitable[QueueStats]]) -> QueueStats:
        async with self._counting.setdefault(name, anyio.Lock()):
            found = self._found.get(name)
            if found is None or time.monotonic() - found[0] > _STATS_SECONDS:
                # Count the time from its end, so that a slow count is not repeated at once.
                stats = await count()
                found = self._found[name] = time.monotonic(), stats
                while len(self._found) > _MOST_STATS:
                    gone, _ = self._found.popitem(last=False)
                    self._counting.pop(gone, None)
            return found[1]
