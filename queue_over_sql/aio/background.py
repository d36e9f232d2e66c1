"""The jobs of a service on an event loop: heartbeat and reaper, each in a task of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from queue_over_sql.background import JOBS, OPTIONS, Background


class _Patient(AsyncIOExecutor):  # type: ignore[misc] # its package has no types
    """Lets jobs end by themselves: a cancelled one would leave a broken connection."""

    def shutdown(self, wait: bool = True) -> None:
        """Start no more."""


class TaskBackground(Background):
    """The jobs of one service beside its callers, a task each.

    Args:
        spawn: runs a job in a greenlet, on a connection that is not one of the callers'.
    """

    def __init__(self, spawn: Callable[[Callable[[], None]], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self._spawn = spawn

    def runner(self, job: Callable[[], None]) -> Callable[[], Any]:
        """A coroutine function that runs the job."""

        async def run() -> None:
            await self._spawn(job)

        return run

    def scheduler(self) -> Any:
        """A scheduler on the event loop that runs now."""
        return AsyncIOScheduler(executors={name: _Patient() for name in JOBS}, **OPTIONS)
