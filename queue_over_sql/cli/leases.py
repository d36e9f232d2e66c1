"""Keeping the leases of messages alive while somebody works on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import TracebackType
from typing import Self

from queue_over_sql import ClaimLost, Message, Queue, QueueError

SHARE_OF_LEASE = 3
SHORTEST_INTERVAL = 0.05
LONGEST_INTERVAL = 3600.0


class LeaseKeeper:
    """Extends the held messages at a third of their lease, from a thread of its own.

    Args:
        queue: where the messages are from.
        warn: told in words what could not be extended.
    """

    def __init__(self, queue: Queue, warn: Callable[[str], None]) -> None:
        self._queue = queue
        self._warn = warn
        self._held: dict[int, Message] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def hold(self, messages: Iterable[Message]) -> None:
        """Keep `messages` from now on."""
        with self._changed:
            self._held.update((message.id, message) for message in messages)
            self._changed.notify()

    def drop(self, messages: Iterable[Message]) -> None:
        """Do not extend `messages` any more; returns when no extension of them is under way."""
        with self._changed:
            for message in messages:
                self._held.pop(message.id, None)

    def _keep(self) -> None:
        with self._changed:
            while not self._closed:
                arrived = self._changed.wait(self._interval())
                if not arrived and self._held:
                    self._extend(list(self._held.values()))

    def _interval(self) -> float | None:
        leases = [_lease(message) for message in self._held.values()]
        if not leases:
            return None
        third = min(leases).total_seconds() / SHARE_OF_LEASE
        return min(LONGEST_INTERVAL, max(SHORTEST_INTERVAL, third))

    def _extend(self, messages: list[Message]) -> None:
        try:
            self._queue.extend(messages)
        except ClaimLost as error:
            for message in error.messages:
                self._held.pop(message.id, None)
            self._warn(str(error))
        except QueueError as error:
            self._warn(f"A lease could not be extended: {error}")


def _lease(message: Message) -> timedelta:
    if message.lease_expires_at is None or message.claimed_at is None:
        return timedelta.max
    return message.lease_expires_at - message.claimed_at
