"""An account of what handlers did with messages of groups, by their own beginnings and ends."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from queue_over_sql import Message


class Account:
    """Notes when handlers begin and end messages, and which rules of ordered groups they break.

    Args:
        ids: the published messages of each group, in order.
        limit: how many of a group may run at once.
    """

    def __init__(self, ids: Mapping[str, Sequence[int]], limit: int = 1) -> None:
        self._ids = ids
        self._limit = limit
        self._lock = threading.Lock()
        self._running: dict[str, list[int]] = {}
        self.most_at_once = 0
        self.done: list[int] = []
        self.attempts: dict[int, list[int]] = {}
        self.mistakes: list[str] = []

    @contextmanager
    def running(self, messages: Iterable[Message]) -> Iterator[None]:
        """Note that a handler works on messages in the block, and finishes them if it ends."""
        given = list(messages)
        with self._lock:
            for message in given:
                self._begin(message, given)
        finished = False
        try:
            yield
            finished = True
        finally:
            with self._lock:
                for message in given:
                    if message.group is not None:
                        self._running[message.group].remove(message.id)
                    if finished:
                        self.done.append(message.id)

    def _begin(self, message: Message, together: Sequence[Message]) -> None:
        self.attempts.setdefault(message.id, []).append(message.attempt)
        if message.group is None:
            return
        running = self._running.setdefault(message.group, [])
        others = [each for each in running if each not in [one.id for one in together]]
        if len(others) >= self._limit:
            self.mistakes.append(f"{message.id} began beside {others} of {message.group!r}")
        running.append(message.id)
        self.most_at_once = max(self.most_at_once, len(others) + 1)
        earlier = [each for each in self._ids[message.group] if each < message.id]
        before = {*self.done, *running} if self._limit > 1 else {*self.done, *_ids(together)}
        if missing := set(earlier) - before:
            self.mistakes.append(f"{message.id} began before {sorted(missing)} had ended")

    @property
    def runs(self) -> int:
        """How many messages run now."""
        with self._lock:
            return sum(map(len, self._running.values()))


def _ids(messages: Iterable[Message]) -> list[int]:
    return [message.id for message in messages]
