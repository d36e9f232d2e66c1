"""Acks: finished messages, until they are acked together."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from queue_over_sql.values.backoff import Backoff

if TYPE_CHECKING:
    from queue_over_sql.database.runtime import Condition
    from queue_over_sql.message import Message

ACK_SECONDS = 0.005
"""How long a finished message may wait for others to be acked with it."""
# Pauses between two tries to ack a message whose ack the database refuses.
_FIRST_AGAIN, _LAST_AGAIN = 1.0, 60.0


class Acks:
    """The finished messages of one handler: those to ack, those in an ack, and refused ones.

    Args:
        changed: notified when a thread may wait for an ack no longer.
        each: whether threads wait for the ack of each message.
    """

    def __init__(self, changed: Condition, *, each: bool) -> None:
        self._changed = changed
        self._each = each
        self._finished: list[Message] = []
        self._acking: list[Message] = []
        self._finished_at = math.inf
        # Messages whose ack the database refused, and when they are acked again.
        self._refused: list[Message] = []
        self._refused_at, self._again = math.inf, Backoff(_FIRST_AGAIN, _LAST_AGAIN)
        self._over = False

    @property
    def finished(self) -> int:
        """How many messages wait for their ack."""
        return len(self._finished)

    @property
    def has_any(self) -> bool:
        """Whether a message waits for its ack or is in one; refused ones do not count."""
        return bool(self._finished or self._acking)

    @property
    def has_refused(self) -> bool:
        """Whether the database has refused an ack."""
        return bool(self._refused)

    @property
    def due_at(self) -> float:
        """When finished or refused messages must be acked; infinity if there are none."""
        return min(self._finished_at + ACK_SECONDS, self._refused_at)

    def messages(self) -> list[Message]:
        """All of them."""
        return [*self._finished, *self._acking, *self._refused]

    def add(self, finished: Sequence[Message]) -> bool:
        """Add finished messages; returns whether they are the first ones that wait."""
        with self._changed:
            first = bool(finished) and not self._finished
            self._finished += finished
            if first:
                self._finished_at = time.monotonic()
        return first

    def are_ripe(self, now: float) -> bool:
        """Whether finished messages have waited for others long enough."""
        return now >= self._finished_at + ACK_SECONDS

    def take(self) -> list[Message]:
        """Take the finished messages, to ack them."""
        with self._changed:
            # In this order, or they would be nowhere for a moment.
            self._acking, self._finished, self._finished_at = self._finished, [], math.inf
            return self._acking

    @contextlib.contextmanager
    def acking(self) -> Iterator[list[Message]]:
        """Ack the finished messages in the block; those that are not settled wait again."""
        acking = self.take()
        later: list[Message] = []
        try:
            yield acking
        except BaseException:
            # Whatever it is. What their handlers did must not be done again.
            later = [message for message in acking if not message.settled]
            raise
        finally:
            with self._changed:
                self._acking = []
                if later:
                    self._finished = later + self._finished
                    self._finished_at = time.monotonic()
                if self._each:
                    self._changed.notify_all()

    def set_aside(self, refused: Sequence[Message]) -> None:
        """Keep refused messages apart from the others, which they would hold up."""
        if refused:
            self._refused = list({id(each): each for each in [*self._refused, *refused]}.values())
            self._refused_at = time.monotonic() + self._again.pause()

    def refused(self) -> list[Message]:
        """The messages whose ack the database refused."""
        return self._refused

    def are_refused_due(self, now: float) -> bool:
        """Whether refused messages must be acked again."""
        return now >= self._refused_at

    def ack_refused_now(self) -> None:
        """Let the refused messages be due at once."""
        if self._refused:
            self._refused_at = 0.0

    def note_refused_again(self, refused: Sequence[Message]) -> None:
        """Note that the refused messages were acked again, but for these."""
        self._refused, self._refused_at = [], math.inf
        self.set_aside(refused)
        if not self._refused:
            self._again.reset()

    def forget(self) -> None:
        """Give all of them up; their leases will expire."""
        self.take()
        self._refused = []

    def await_acked(self, finished: Sequence[Message], seconds: float = math.inf) -> None:
        """Wait until these are acked or lost, for at most ``seconds``."""
        ends_at = time.monotonic() + seconds
        with self._changed:
            while not self._over and self._has_any_of(finished):
                left = ends_at - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(None if left == math.inf else left)

    def _has_any_of(self, messages: Sequence[Message]) -> bool:
        unacked = set(map(id, [*self._finished, *self._acking]))
        return not unacked.isdisjoint(map(id, messages))

    def end(self) -> None:
        """Let nobody wait for an ack any more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
