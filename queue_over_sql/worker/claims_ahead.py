"""Forecast: how many messages to claim before a thread is free for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from queue_over_sql.message import payload_size

if TYPE_CHECKING:
    from queue_over_sql.message import Message

HORIZON_SECONDS = 0.05
"""A claimed message is given back if no thread begins it within this time."""
# How much work to claim ahead, by the recent speed of handlers; the rest of the horizon is a
# reserve.
_AHEAD_SECONDS = HORIZON_SECONDS / 2
MOST_AHEAD = 1000
"""The largest number of messages to claim ahead, with at most 8 MiB of payload."""
_MOST_BYTES = 8 * 2**20
# The weight of the last call in the mean time of a call.
_WEIGHT = 0.1
_SHORTEST = 1e-6


class Forecast:
    """Estimates by the mean time of a call how many messages its threads will soon need.

    Args:
        size: messages of a call.
        concurrency: the number of threads.
        prefetch: messages for each thread, including the one in work; None: by the handler's speed.
    """

    def __init__(self, *, size: int, concurrency: int, prefetch: int | None) -> None:
        self._size = size
        self._concurrency = concurrency
        self._prefetch = prefetch
        # The mean duration of a call, in seconds.
        self._mean = math.inf
        self._most_ahead = 0

    @property
    def is_fixed(self) -> bool:
        """Whether the user has set the number."""
        return self._prefetch is not None

    def ahead(self, share: float) -> int:
        """How many messages to claim ahead for this many threads."""
        if self._prefetch is not None:
            return max(0, self._prefetch - self._size) * self._concurrency
        if self._mean >= HORIZON_SECONDS:
            return 0
        calls = int(_AHEAD_SECONDS * share / max(self._mean, _SHORTEST))
        return min(calls * self._size, self._most_ahead)

    def note_call(self, seconds: float) -> None:
        """Add the duration of a call to the mean."""
        before = self._mean
        self._mean = seconds if before == math.inf else before + (seconds - before) * _WEIGHT

    def note_found(self, found: Sequence[Message]) -> None:
        """Let the claims grow, as far as the size of these payloads allows."""
        most = max(2 * self._most_ahead, self._concurrency * self._size)
        size = max(1, sum(map(payload_size, found)))
        self._most_ahead = min(most, MOST_AHEAD, _MOST_BYTES * len(found) // size)

    def claim_none_ahead(self) -> None:
        """Begin again with claims for free threads only."""
        self._most_ahead = 0

    def note_stale(self) -> None:
        """Note that messages waited too long: the handler is slower than estimated."""
        self._mean, self._most_ahead = max(self._mean, HORIZON_SECONDS), 0
