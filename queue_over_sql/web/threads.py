"""Threads for the synchronous core, so that the event loop never waits for a database."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Final, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")

_MOST_OF_ONE: Final = 2


class Busy(Exception):
    """So many searches run that another one would keep other requests waiting."""


class Threads:
    """Threads for slow requests, and as many for fast ones.

    A request without a free thread waits on the event loop.

    Args:
        most: the number of threads of each kind.
    """

    def __init__(self, most: int) -> None:
        self._limiter = anyio.CapacityLimiter(most)
        self._quick = anyio.CapacityLimiter(most)
        # The others are left to pages, which must not wait for searches.
        self._most_searches = max(1, most // 2)
        self._searching = anyio.CapacityLimiter(self._most_searches)
        self._searches: collections.Counter[str] = collections.Counter()

    async def run(self, do: Callable[[], T]) -> T:
        """Call a function in a thread, and wait for it even if the caller is cancelled."""
        return await anyio.to_thread.run_sync(do, limiter=self._limiter)

    async def run_quick(self, do: Callable[[], T]) -> T:
        """As ``run``, but never behind searches: to publish, claim, settle and authenticate."""
        return await anyio.to_thread.run_sync(do, limiter=self._quick)

    async def search(self, do: Callable[[], T], who: str) -> T:
        """As ``run``, for what reads many messages: a few at once of all users and of each.

        Raises:
            Busy: that many run already.
        """
        running = self._searches
        if running[who] >= _MOST_OF_ONE or running.total() >= self._most_searches:
            raise Busy
        running[who] += 1
        try:
            return await self.search_later(do)
        finally:
            running[who] -= 1
            if not running[who]:
                del running[who]

    async def search_later(self, do: Callable[[], T]) -> T:
        """As ``search``, but it waits instead of raising: for the parts of a long answer."""
        async with self._searching:
            return await self.run(do)
