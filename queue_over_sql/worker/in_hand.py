"""The messages that a worker has claimed for a handler: ready for a thread, or in a call."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from queue_over_sql.message import Message

T = TypeVar("T")


class InHand:
    """The messages of one handler that are ready or in a call.

    Its supply and the threads use it at the same time, without a lock. So a message is in its next
    place before it leaves the last one, and single operations on a deque do not need one.
    """

    def __init__(self) -> None:
        # With the time of the claim.
        self._ready: deque[tuple[Message, float]] = deque()
        self._calls: dict[int, list[Message]] = {}

    @property
    def ready(self) -> int:
        """How many messages are claimed and not begun."""
        return len(self._ready)

    @property
    def has_any(self) -> bool:
        """Whether a message is ready or in a call."""
        return bool(self._ready or self._calls)

    @property
    def oldest_at(self) -> float:
        """When the first of the messages that are ready was claimed; infinity if none is."""
        return min((at for _, at in list(self._ready)), default=math.inf)

    def ready_messages(self) -> list[Message]:
        """Those that are claimed and not begun."""
        return [message for message, _ in list(self._ready)]

    def calls(self) -> dict[int, list[Message]]:
        """The messages of each running call."""
        return dict(self._calls)

    def place(self, found: Sequence[Message], holds: Callable[[Message], bool]) -> None:
        """Let claimed messages be ready, more urgent ones before those that were claimed earlier.

        Args:
            found: the messages of a claim.
            holds: whether the identity of this consumer that claimed a message still lives.
        """
        now = time.monotonic()
        claimed = [(message, now) for message in found]
        first, last = self._ends()
        if first is not None and not holds(first):
            # These belong to an expired identity of this consumer.
            _drained(self._ready)
        elif last is not None and found[0].priority < last.priority:
            claimed = sorted(_drained(self._ready) + claimed, key=lambda each: each[0].priority)
        self._ready.extend(claimed)

    def _ends(self) -> tuple[Message | None, Message | None]:
        try:
            return self._ready[0][0], self._ready[-1][0]
        except IndexError:
            return None, None

    def place_stale(self, messages: Sequence[Message]) -> None:
        """Let messages be ready that were not released; they may not wait any longer."""
        self._ready.extend((message, 0.0) for message in messages)

    def take(self, most: int) -> list[Message]:
        """Begin a call with up to this many messages; empty if none is ready."""
        taken: list[Message] = []
        if not self._ready:
            return taken
        # First, or between the two places the worker would look as if it had nothing in hand.
        self._calls[id(taken)] = taken
        taken += [message for message, _ in _drained(self._ready, most)]
        if not taken:
            del self._calls[id(taken)]
        return taken

    def is_call(self, taken: Sequence[Message]) -> bool:
        """Whether this call runs, and was not abandoned."""
        return id(taken) in self._calls

    def put_back(self, unbegun: Sequence[Message]) -> None:
        """Let messages of a call be ready that it did not begin; they may not wait any longer."""
        self._ready.extendleft((message, 0.0) for message in reversed(unbegun))

    def end_call(self, taken: Sequence[Message]) -> None:
        """Forget a call that has ended or was abandoned."""
        self._calls.pop(id(taken), None)

    def remove_ready(self) -> list[Message]:
        """Take all messages that are not begun."""
        return [message for message, _ in _drained(self._ready)]


def _drained(items: deque[T], most: float = math.inf) -> list[T]:
    # One by one, since other threads may take some at the same time.
    taken: list[T] = []
    try:
        while len(taken) < most:
            taken.append(items.popleft())
    except IndexError:
        return taken
    return taken
