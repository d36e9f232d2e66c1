"""Threads: where the synchronous core works, so that the event loop never waits for a database."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


class Threads:
    """Threads for whatever may take long, and as many for what has to be quick.

    Whoever finds none free waits on the event loop.

    Args:
        most: how many there are of each.
    """

    def __init__(self, most: int) -> None:
        self._limiter = anyio.CapacityLimiter(most)
        self._quick = anyio.CapacityLimiter(most)

    async def run(self, act: Callable[[], T]) -> T:
        """Call a function in a thread; once begun it is always waited for."""
        return await anyio.to_thread.run_sync(act, limiter=self._limiter)

    async def run_quick(self, act: Callable[[], T]) -> T:
        """Likewise, where no search is before it: publish, claim, settle, and see who asks."""
        return await anyio.to_thread.run_sync(act, limiter=self._quick)
