"""Lease renewal for messages that somebody works on for long."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import math
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from queue_over_sql.database.connections import Connections
from queue_over_sql.database.forks import shared_lock
from queue_over_sql.database.runtime import THREADS, LoopProgress, Running, Runtime
from queue_over_sql.errors import ClaimLost, DatabaseRefused, Locked, QueueError
from queue_over_sql.message import claimed_lease_us, note_cancelled
from queue_over_sql.observer import log_fields

if TYPE_CHECKING:
    from queue_over_sql.message import Message


_log = logging.getLogger(__name__)

# At a third of the lease, so that two renewals may fail.
_SHARE = 3
_LONGEST_SLEEP = 60.0
# A handler learns within this time that its message was cancelled, even if the lease is long.
_LONGEST_INTERVAL = 10.0
# A lease may be as short as a microsecond, and an edit of the row may make it negative. The renewal
# must leave an event loop time for everything else.
_SHORTEST_INTERVAL = 0.01
# A message may just have been acked, without being marked as settled yet.
_SETTLING_SECONDS = 0.2
# How many messages one statement renews. It keeps its rows locked while it waits for a locked one.
_TOGETHER = 100
# How many threads renew the messages of one group. All but the last one wait for locked rows.
_MOST_THREADS = 4
# The largest number of messages in a log record.
_NAMED = 10


Groups = Mapping[int, Sequence["Message"]]


class Leases(Protocol):
    """The queue of the messages."""

    def holds(self, message: Message) -> bool:
        """Whether this consumer still holds a message, as far as it knows."""

    def extend(self, messages: Sequence[Message]) -> None:
        """Renew their leases; ClaimLost lists those whose claims are lost."""


@dataclasses.dataclass(eq=False)
class _Holding:
    queue: Callable[[], Leases]
    groups: Callable[[], Groups]
    interval: float = math.inf
    due_at: float = math.inf
    # How many threads renew each group.
    threads: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    # Messages, by their identity, whose last renewal with others did not succeed, or still runs.
    apart: dict[int, Message] = dataclasses.field(default_factory=dict)
    # Those that a thread renews alone at this moment.
    alone: set[int] = dataclasses.field(default_factory=set)


class LeaseKeeper:
    """Renews, in the background, the leases of all messages that somebody has in hand."""

    def __init__(self, runtime: Runtime = THREADS) -> None:
        self.progress = LoopProgress("lease renewal")
        self._runtime = runtime
        self._holdings: list[_Holding] = []
        self._changed = runtime.condition()
        self._running: Running | None = None
        self._stopping = False
        self._pid = os.getpid()
        # When the thread wakes up by itself.
        self._wakes_at = math.inf

    def holding(
        self, queue: Callable[[], Leases], groups: Callable[[], Groups]
    ) -> Callable[[Sequence[Message]], None]:
        """Renew the leases of all messages in hand.

        Args:
            queue: returns their queue.
            groups: returns the messages in hand, in numbered groups. Messages that must not wait
                for others are in groups of their own. Without any group, the renewal ends.

        Returns:
            A function to call with the messages of each claim.
        """
        return functools.partial(self._note, self._hold(queue, groups))

    @contextlib.contextmanager
    def keeping(self, queue: Leases, messages: Sequence[Message]) -> Iterator[None]:
        """Renew the leases of ``messages`` while the block runs."""
        holding = self._hold(lambda: queue, lambda: {0: messages})
        self._note(holding, messages)
        try:
            yield
        finally:
            with self._changed:
                self._drop(holding)

    def stop(self) -> None:
        """Stop the renewal."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _hold(self, queue: Callable[[], Leases], groups: Callable[[], Groups]) -> _Holding:
        holding = _Holding(queue, groups)
        with self._changed:
            if self._pid != os.getpid():
                # The parent renews its own, and its thread does not run here.
                self._pid, self._holdings, self._running = os.getpid(), [], None
                self._wakes_at = math.inf
            self._holdings.append(holding)
        return holding

    def _drop(self, holding: _Holding) -> None:
        # A child of a fork has none of its parent's.
        if holding in self._holdings:
            self._holdings.remove(holding)

    def _note(self, holding: _Holding, claimed: Sequence[Message]) -> None:
        interval = _interval(claimed)
        due_at = time.monotonic() + interval
        if due_at >= holding.due_at:
            return
        holding.interval = interval
        with self._changed:
            # First of all, because it fails if no thread is free.
            if self._running is None:
                self._running = self._runtime.start("queue-over-sql-leases", self._loop)
            holding.due_at = min(due_at, holding.due_at)
            if due_at < self._wakes_at:
                self._changed.notify_all()

    def _loop(self) -> None:
        self.progress.begin()
        while True:
            with self._changed:
                now = time.monotonic()
                next_at = min([now + _LONGEST_SLEEP, *(each.due_at for each in self._holdings)])
                if not self._stopping and next_at > now:
                    self._wakes_at = self.progress.due_at = next_at
                    self._changed.wait(next_at - now)
                if self._stopping:
                    self.progress.end()
                    return
                self.progress.due_at = time.monotonic()
                due = [each for each in self._holdings if each.due_at <= time.monotonic()]
                for holding in due:
                    holding.due_at = math.inf
            for holding in due:
                try:
                    self._renew_all(holding)
                except Exception:  # noqa: BLE001 - else no lease would be renewed any more
                    _log.exception("The lease renewal continues after an unexpected error.")
                    self._put_off(holding)

    def _groups(self, holding: _Holding) -> Groups:
        groups = holding.groups()
        if not groups:
            with self._changed:
                self._drop(holding)
        return groups

    def _renew_all(self, holding: _Holding) -> None:
        queue = holding.queue()
        groups, nothing = self._groups(holding), True
        if not groups:
            return
        for key, message in list(holding.apart.items()):
            if _is_over(message):
                holding.apart.pop(key, None)
        for number, group in groups.items():
            unsettled = [each for each in group if not _is_over(each)]
            messages = [each for each in unsettled if queue.holds(each)]
            if len(messages) < len(unsettled):
                _note_lost([each for each in unsettled if not queue.holds(each)])
            if not messages:
                continue
            nothing = False
            self._note(holding, messages)
            # Renew each group separately, because a locked row must not delay the others.
            with self._changed:
                threads = holding.threads[number]
                if threads >= (_MOST_THREADS if len(messages) > 1 else 1):
                    continue
                holding.threads[number] += 1
            last = threads + 1 == _MOST_THREADS
            try:
                self._runtime.start(
                    "queue-over-sql-lease", self._renew, holding, number, messages, last, few=True
                )
            except BaseException:
                self._end_thread(holding, number)
                raise
        if nothing:
            # A message may just be moving from one group to another.
            self._put_off(holding)

    def _put_off(self, holding: _Holding) -> None:
        with self._changed:
            holding.due_at = min(holding.due_at, time.monotonic() + holding.interval)

    def _end_thread(self, holding: _Holding, number: int) -> None:
        with self._changed:
            holding.threads[number] -= 1
            if not holding.threads[number]:
                del holding.threads[number]

    def _renew(
        self,
        holding: _Holding,
        number: int,
        messages: Sequence[Message],
        last: bool,
    ) -> None:
        try:
            # Those alone come after all others, because they may wait.
            together = [each for each in messages if id(each) not in holding.apart]
            for begin in range(0, len(together), _TOGETHER):
                part = together[begin : begin + _TOGETHER]
                self._renew_part(holding, part, give_way=last or len(part) > 1)
            for message in messages:
                if id(message) in holding.apart and id(message) not in holding.alone:
                    holding.alone.add(id(message))
                    try:
                        self._renew_part(holding, [message], give_way=last)
                    finally:
                        holding.alone.discard(id(message))
        finally:
            self._end_thread(holding, number)

    def _renew_part(self, holding: _Holding, part: Sequence[Message], *, give_way: bool) -> None:
        queue = holding.queue()
        # It may have waited for others.
        messages = {id(each): each for each in part if not _is_over(each) and queue.holds(each)}
        if not messages:
            return
        # Another thread renews them alone if this takes longer than until the next renewal.
        holding.apart.update(messages)
        stay_apart = False
        try:
            with Connections.giving_way() if give_way else contextlib.nullcontext():
                queue.extend(list(messages.values()))
        except ClaimLost as lost:
            # It was either settled at this moment, or lost.
            self._runtime.sleep(_SETTLING_SECONDS)
            in_hand = {id(each) for group in self._groups(holding).values() for each in group}
            _note_lost(lost.messages, in_hand)
        except QueueError as error:
            stay_apart = isinstance(error, Locked | DatabaseRefused)
            if len(messages) == 1 or not stay_apart:
                _log.warning("Leases could not be renewed: %s", error)
        finally:
            if not stay_apart:
                for key in messages:
                    holding.apart.pop(key, None)


class KeptMessages:
    """Messages of one queue whose leases are renewed until they are settled."""

    def __init__(self, keeper: LeaseKeeper, queue: Leases) -> None:
        self._keeper = keeper
        self._queue = queue
        self._lock = shared_lock()
        self._pid = -1
        self._messages: list[Message] = []
        self._note: Callable[[Sequence[Message]], None] | None = None

    def add(self, messages: Sequence[Message]) -> None:
        """Renew the leases of these, too."""
        with self._lock:
            if self._pid != os.getpid():
                # What a parent process keeps is not this one's.
                self._messages, self._note = [], None
                self._pid = os.getpid()
            if self._note is None:
                self._note = self._keeper.holding(lambda: self._queue, self._groups)
            note = self._note
            self._messages += messages
        note(messages)

    def _groups(self) -> Groups:
        with self._lock:
            self._messages = [each for each in self._messages if not _is_over(each)]
            if not self._messages:
                # The renewal ends, and the next claim begins another one.
                self._note = None
                return {}
            return {0: list(self._messages)}


def _is_over(message: Message) -> bool:
    return message.settled or message.cancelled


def _note_lost(messages: Iterable[Message], in_hand: Container[int] | None = None) -> None:
    lost = [message for message in messages if not _is_over(message)]
    # What is no longer in hand was lost by its release, which another thread has not noted yet.
    named = [message for message in lost if in_hand is None or id(message) in in_hand]
    if named:
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        names = ", ".join(map(repr, named[:_NAMED]))
        fields = log_fields(named[0].queue, named)
        text = "Claims are lost; their messages are marked as cancelled: %s%s"
        _log.error(text, names, more, extra=fields)
    for message in lost:
        note_cancelled(message)


def _interval(messages: Iterable[Message]) -> float:
    lengths = (claimed_lease_us(message) or 0 for message in messages)
    share = min(lengths, default=math.inf) / 1_000_000 / _SHARE
    return share if share == math.inf else min(max(share, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)
