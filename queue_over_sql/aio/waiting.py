"""What tasks of an event loop wait for: locks, conditions and events, used from inside greenlets.

Threads have the same names in ``threading``; here everything happens in the loop's own thread, so
nothing needs a lock but what is held while something else is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Self

from sqlalchemy.util import await_only

if TYPE_CHECKING:
    from types import TracebackType


class TaskLock:
    """A lock that one task holds at a time, as often as it likes.

    Args:
        me: tells who is calling.
    """

    def __init__(self, me: Callable[[], Hashable]) -> None:
        self._me = me
        self._lock = asyncio.Lock()
        self._holder: Hashable | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; False where it could not be had, or not in time."""
        me = self._me()
        if self._holder == me:
            self._depth += 1
            return True
        if self._lock.locked() and not blocking:
            return False
        if not await_only(self._taken(None if timeout < 0 else timeout)):
            return False
        self._holder, self._depth = me, 1
        return True

    def release(self) -> None:
        """Give it back once."""
        self._depth -= 1
        if not self._depth:
            self._holder = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        self.release()

    async def _taken(self, seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._lock.acquire()
        except TimeoutError:
            return False


class TaskCondition:
    """What happens now and then, for the tasks that wait for it."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[bool]] = set()

    def wait(self, timeout: float | None = None) -> bool:
        """Let other tasks run until it happens, or for so long; False where it did not."""
        loop = asyncio.get_running_loop()
        happened = loop.create_future()
        timer = None if timeout is None else loop.call_later(timeout, _resolve, happened, False)  # noqa: FBT003
        self._waiting.add(happened)
        try:
            return bool(await_only(happened))
        finally:
            self._waiting.discard(happened)
            if timer is not None:
                timer.cancel()

    def notify_all(self) -> None:
        """It happens."""
        for happened in self._waiting:
            _resolve(happened, True)  # noqa: FBT003

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Nothing was locked."""


class TaskEvent:
    """What happens once."""

    def __init__(self) -> None:
        self._happened = False
        self._condition = TaskCondition()

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._happened

    def set(self) -> None:
        """It happens."""
        self._happened = True
        self._condition.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Let other tasks run until it happens, or for so long."""
        if not self._happened:
            self._condition.wait(timeout)
        return self._happened


def _resolve(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)
