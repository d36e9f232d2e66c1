"""Polls: when a supply asks the database for messages, by what it knows of its queue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from queue_over_sql.values.backoff import poll_pauses

if TYPE_CHECKING:
    from collections.abc import Callable

    from queue_over_sql.database.notify import Arrivals


class Polls:
    """When to poll one queue.

    Args:
        arrivals: of messages.
        bounds: shortest and longest pause in seconds between two polls of an empty queue.
    """

    def __init__(self, arrivals: Arrivals, bounds: tuple[float, float]) -> None:
        self._arrivals = arrivals
        self._pauses, self._longest, self._next_at = poll_pauses(*bounds), bounds[1], 0.0
        # The count of arrivals before a poll that found nothing.
        self._seen: int | None = None
        # How many calls had ended before that poll.
        self._seen_after = 0

    @property
    def found(self) -> bool:
        """Whether the last poll found messages."""
        return self._seen is None

    @property
    def arrived(self) -> int:
        """The count of arrivals, to be read before a poll."""
        return self._arrivals.count

    @property
    def next_at(self) -> float:
        """When the queue is polled again, if nothing arrives."""
        return self._next_at

    def found_nothing(self, ended_calls: int) -> bool:
        """Whether the last poll found nothing, and no call has ended since."""
        return self._seen is not None and self._seen_after == ended_calls

    def is_due(self, ended_calls: int, *, until_empty: bool) -> bool:
        """Whether the queue may have messages, as far as is known.

        Args:
            ended_calls: the count of calls that have ended, which may have published.
            until_empty: whether their end is a reason for a poll.
        """
        if self._seen is None or (until_empty and self._seen_after != ended_calls):
            return True
        return self._seen != self._arrivals.count or time.monotonic() >= self._next_at

    def note(self, *, found: bool, arrived: int, ended_calls: int, token_at: float = 0.0) -> None:
        """Note the result of a poll, with both counts from before it.

        ``token_at``: nothing is to be found before then, on the monotonic clock.
        """
        if found:
            self._seen = None
            self._pauses.reset()
        else:
            now = time.monotonic()
            if token_at > now:
                # Somebody may change the rate meanwhile.
                self._next_at = min(token_at, now + self._longest)
            else:
                self._next_at = now + self._pauses.pause()
            self._seen = arrived
        self._seen_after = ended_calls

    def await_arrival(self, seconds: float, until: Callable[[], bool]) -> None:
        """Sleep until messages may have arrived, ``until`` is true, or the time is over."""
        if self._arrivals.wait(self._seen or 0, seconds, until=until):
            self._pauses.reset()

    def wake(self) -> None:
        """Let ``await_arrival`` check its ``until`` again."""
        self._arrivals.wake()
