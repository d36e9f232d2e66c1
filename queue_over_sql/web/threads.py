"""Threads for the synchronous core, so that the event loop never waits for a database."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


class Threads:
    """Threads for slow requests, and as many for fast ones.

    A request without a free thread waits on the event loop.

    Args:
        most: the number of threads of each kind.
    """

    def __init__(self, most: int) -> None:
        self._limiter = anyio.CapacityLimiter(most)
        self._quick = anyio.CapacityLimiter(most)

    async def run(self, do: Callable[[], T]) -> T:
        """Call a function in a thread, and wait for it even if the caller is cancelled."""
        return await anyio.to_thread.run_sync(do, limiter=self._limiter)

    async def run_quick(self, do: Callable[[], T]) -> T:
        """As ``run``, but never behind searches: to publish, claim, settle and authenticate."""
        return await anyio.to_thread.run_sync(do, limiter=self._quick)
