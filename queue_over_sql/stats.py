"""What a queue holds, counted when asked: live counters are never kept in hot rows."""

from __future__ import annotations

import dataclasses
from datetime import timedelta


@dataclasses.dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts of one queue at one moment.

    Attributes:
        ready: messages that may be claimed now.
        delayed: messages that are due later.
        claimed: messages that a consumer holds.
        held: messages that an operator took out of delivery.
        archived: finished messages that are kept.
        done, failed, rejected, expired: those by outcome.
        discarded: dead messages that were not kept, because the queue has ``archive="none"``.
        oldest_ready_age: how long the oldest ready message has been due; None without one.
        paused: whether the queue is paused.
        wal_bytes: size of the write-ahead log of the database, on SQLite; None on other engines.
    """

    ready: int
    delayed: int
    claimed: int
    held: int
    archived: int
    done: int
    failed: int
    rejected: int
    expired: int
    discarded: int
    oldest_ready_age: timedelta | None
    paused: bool
    wal_bytes: int | None = None

    @property
    def live(self) -> int:
        """All messages that are not finished."""
        return self.ready + self.delayed + self.claimed + self.held
