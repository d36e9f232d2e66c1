"""Arrivals: what wakes those of this process who wait for a message, instead of their next look."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queue_over_sql.runtime import Runtime


class Arrivals:
    """What has arrived for one service, counted, so that nothing falls between look and wait.

    Args:
        runtime: what waits.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._condition = runtime.condition()
        self._waited_for = runtime.condition()
        self._count = 0
        self._last_burst = 0
        self._waiting: set[object] = set()

    @property
    def count(self) -> int:
        """How often something may have arrived; to be asked before a look, for ``wait``."""
        return self._count

    def announce(self, *, burst: bool = False) -> None:
        """Something may have arrived.

        Args:
            burst: more may come of which nobody will be told, so look often for a while.
        """
        with self._condition:
            self._count += 1
            if burst:
                self._last_burst = self._count
            self._condition.notify_all()

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until something arrives, at most ``seconds``; not at all if it has meanwhile.

        Args:
            seen: ``count`` before the look that found nothing.
            seconds: for how long at most.

        Returns:
            Whether a burst began.
        """
        me = object()
        try:
            self._enter(me)
            with self._condition:
                if self._count == seen:
                    self._condition.wait(seconds)
                return self._last_burst > seen
        finally:
            # Wherever an interrupt hit: nobody who has left may seem to wait.
            self._waiting.discard(me)

    def wait_for_waiting(self, seconds: float) -> bool:
        """Sleep until somebody waits here, at most ``seconds``; whether somebody does."""
        with self._waited_for:
            if not self._waiting:
                self._waited_for.wait(seconds)
            return bool(self._waiting)

    def interrupt(self) -> None:
        """End ``wait_for_waiting`` of another."""
        with self._waited_for:
            self._waited_for.notify_all()

    def _enter(self, me: object) -> None:
        with self._waited_for:
            self._waiting.add(me)
            if len(self._waiting) == 1:
                self._waited_for.notify_all()
