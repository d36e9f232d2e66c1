"""The messages that a worker has claimed for a handler: ready for a thread, or in a call."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from queue_over_sql.message import claim_of

if TYPE_CHECKING:
    from queue_over_sql.message import Message

T = TypeVar("T")


class _Claimed(NamedTuple):
    message: Message
    at: float


class InHand:
    """The messages of one handler that are ready or in a call.

    Its supply and the threads use it at the same time, without a lock. So a message is in its next
    place before it leaves the last one, and single operations on a deque do not need one.

    Messages of a *series* run one after another. While one of them is in a call, the others are not
    ready. From the first series on all changes are made under a lock.

    Args:
        size: messages of a call.
        together: whether a call fails for all its messages. Then the last attempt of a message is a
            call of its own, so that none becomes a dead letter because of another one.
    """

    def __init__(self, size: int = 1, *, together: bool = False) -> None:
        # With the time of the claim. The name of a series stands for those of it that are behind.
        self._ready: deque[_Claimed | str] = deque()
        self._calls: dict[int, list[Message]] = {}
        self._size = size
        self._together = together
        self._lock = threading.Lock()
        self._has_series, self._unbegun = False, 0
        # What has not begun of each series; and the series that wait for each call.
        self._behind: dict[str, deque[_Claimed]] = {}
        self._running: dict[int, list[str]] = {}
        # The series of each message that has one.
        self._series: dict[int, str] = {}

    @property
    def ready(self) -> int:
        """How many messages are claimed, and may begin now."""
        if not self._has_series or self._size == 1:
            return len(self._ready)
        with self._lock:
            return sum(map(self._startable, self._ready))

    def _startable(self, each: _Claimed | str) -> int:
        return min(self._size, len(self._behind[each])) if isinstance(each, str) else 1

    @property
    def unbegun(self) -> int:
        """How many messages are claimed and not begun."""
        return self._unbegun if self._has_series else len(self._ready)

    @property
    def has_series(self) -> bool:
        """Whether messages of a series were ever placed."""
        return self._has_series

    @property
    def has_any(self) -> bool:
        """Whether a message is ready or in a call."""
        return bool(self._ready or self._calls or self._behind)

    @property
    def oldest_at(self) -> float:
        """When the first of the messages that have not begun was claimed; infinity if all have."""
        return min((each.at for each in self._all_unbegun()), default=math.inf)

    def ready_messages(self) -> list[Message]:
        """Those that are claimed and not begun."""
        return [each.message for each in self._all_unbegun()]

    def _all_unbegun(self) -> list[_Claimed]:
        if not self._has_series:
            return [each for each in list(self._ready) if not isinstance(each, str)]
        with self._lock:
            return self._in_order()

    def _in_order(self) -> list[_Claimed]:
        """All that has not begun: what is ready first, each series together."""
        names = [each for each in self._ready if isinstance(each, str)]
        others = [name for name in self._behind if name not in set(names)]
        found: list[_Claimed] = []
        for each in [*self._ready, *others]:
            found += self._behind[each] if isinstance(each, str) else [each]
        return found

    def calls(self) -> dict[int, list[Message]]:
        """The messages of each running call."""
        return dict(self._calls)

    def series_of(self, message: Message) -> str | None:
        """The series of a message in hand; None if it has none."""
        return self._series.get(id(message))

    def place(
        self,
        found: Sequence[Message],
        holds: Callable[[Message], bool],
        series: Sequence[str | None] = (),
    ) -> None:
        """Let claimed messages be ready, more urgent ones before those that were claimed earlier.

        Args:
            found: the messages of a claim.
            holds: whether the identity of this consumer that claimed a message still lives.
            series: the series of each, which is its group, if there are any.
        """
        now = time.monotonic()
        claimed = [_Claimed(message, now) for message in found]
        if self._has_series or any(name is not None for name in series):
            with self._lock:
                if not self._has_series:
                    self._has_series, self._unbegun = True, len(self._ready)
                self._place_series(claimed, holds, series)
            return
        first, last = self._ends()
        if first is not None and not holds(first):
            # These belong to an expired identity of this consumer.
            _drained(self._ready)
        elif last is not None and found[0].priority < last.priority:
            self._ready.extend(sorted([*_drained(self._ready), *claimed], key=self._urgency))
            return
        self._ready.extend(claimed)

    def _ends(self) -> tuple[Message | None, Message | None]:
        try:
            return self._first_of(self._ready[0]), self._first_of(self._ready[-1])
        except IndexError:
            return None, None

    def _first_of(self, each: _Claimed | str) -> Message:
        return (self._behind[each][0] if isinstance(each, str) else each).message

    def _urgency(self, each: _Claimed | str) -> int:
        return self._first_of(each).priority

    def _place_series(
        self,
        claimed: Sequence[_Claimed],
        holds: Callable[[Message], bool],
        series: Sequence[str | None],
    ) -> None:
        if not all(holds(each.message) for each in self._in_order()):
            self._forget_unbegun()
        last = self._ends()[1]
        self._unbegun += len(claimed)
        for each, name in itertools.zip_longest(claimed, series):
            if name is None:
                self._ready.append(each)
                continue
            self._series[id(each.message)] = name
            if name not in self._behind:
                self._behind[name] = deque()
                if not self._runs(name):
                    self._ready.append(name)
            self._behind[name].append(each)
        if last is not None and claimed[0].message.priority < last.priority:
            self._ready = deque(sorted(self._ready, key=self._urgency))

    def _runs(self, name: str) -> bool:
        return any(name in names for names in self._running.values())

    def _forget_unbegun(self) -> list[_Claimed]:
        unbegun, self._unbegun = self._in_order(), 0
        for each in unbegun:
            self._series.pop(id(each.message), None)
        self._ready.clear()
        self._behind.clear()
        return unbegun

    def place_stale(self, messages: Sequence[Message]) -> None:
        """Let messages be ready that were not released; they may not wait any longer."""
        with self._lock:
            # Nobody begins them any more, so their series do not matter.
            self._ready.extend(_Claimed(message, 0.0) for message in messages)
            self._unbegun += len(messages)

    def take(self, most: int) -> list[Message]:
        """Begin a call with up to this many messages; empty if none is ready."""
        taken: list[Message] = []
        if not self._ready:
            return taken
        # First, or between the two places the worker would look as if it had nothing in hand.
        self._calls[id(taken)] = taken
        if self._has_series:
            with self._lock:
                self._take_series(taken, most)
        else:
            self._take_single(taken, most)
        if not taken:
            self._running.pop(id(taken), None)
            del self._calls[id(taken)]
        return taken

    def _take_single(self, taken: list[Message], most: int) -> None:
        # One by one, since other threads may take some at the same time.
        while len(taken) < most and self._ready:
            try:
                each = self._ready.popleft()
            except IndexError:
                return
            if isinstance(each, str):
                # The first series came just now.
                self._ready.appendleft(each)
                return
            if self._runs_alone(each.message):
                if taken:
                    self._ready.appendleft(each)
                else:
                    taken.append(each.message)
                return
            taken.append(each.message)

    def _runs_alone(self, message: Message) -> bool:
        return self._together and message.max_attempts <= message.attempt > 1

    def _take_series(self, taken: list[Message], most: int) -> None:
        names = self._running[id(taken)] = list[str]()
        while self._ready and len(taken) < most:
            each = self._ready.popleft()
            alone = self._runs_alone(self._first_of(each))
            if alone and taken:
                self._ready.appendleft(each)
                break
            if not isinstance(each, str):
                taken.append(each.message)
            else:
                behind = self._behind[each]
                names.append(each)
                while behind and len(taken) < most:
                    if taken and self._runs_alone(behind[0].message):
                        break
                    taken.append(behind.popleft().message)
                    if alone:
                        break
                if not behind:
                    del self._behind[each]
            if alone:
                break
        self._unbegun -= len(taken)

    def is_call(self, taken: Sequence[Message]) -> bool:
        """Whether this call runs, and was not abandoned."""
        return id(taken) in self._calls

    def put_back(self, unbegun: Sequence[Message]) -> None:
        """Let messages of a call be ready that it did not begin; they may not wait any longer."""
        if not self._has_series:
            self._ready.extendleft(_Claimed(message, 0.0) for message in reversed(unbegun))
            return
        with self._lock:
            for message in reversed(unbegun):
                name = self._series.get(id(message))
                # The call still runs, so a series is ready only after it.
                place = self._ready if name is None else self._behind.setdefault(name, deque())
                place.appendleft(_Claimed(message, 0.0))
            self._unbegun += len(unbegun)

    def end_call(self, taken: Sequence[Message]) -> None:
        """Forget a call that has ended or was abandoned."""
        self._calls.pop(id(taken), None)

    def let_go_on(self, taken: Sequence[Message], unbegun: Sequence[Message] = ()) -> int:
        """Let the series of an ended call go on; returns how many of them are ready now.

        Args:
            taken: the messages of the call.
            unbegun: those of them that were put back.
        """
        if not self._has_series:
            return 0
        ready, kept = 0, set(map(id, unbegun))
        with self._lock:
            for message in taken:
                if id(message) not in kept:
                    self._series.pop(id(message), None)
            for name in self._running.pop(id(taken), ()):
                if name in self._behind and not self._runs(name):
                    # They were claimed before what is ready.
                    self._ready.appendleft(name)
                    ready += 1
        return ready

    def remove_behind(self, failed: Iterable[Message]) -> list[Message]:
        """Take what the same claim got behind messages of a series; they must not begin."""
        removed: list[Message] = []
        if not self._has_series:
            return removed
        with self._lock:
            for message in failed:
                name = message.group
                if name is None or name not in self._behind:
                    continue
                claim, kept = claim_of(message), deque[_Claimed]()
                for each in self._behind[name]:
                    behind = each.message.id > message.id and claim_of(each.message) == claim
                    if behind:
                        removed.append(each.message)
                        self._unbegun -= 1
                        self._series.pop(id(each.message), None)
                    else:
                        kept.append(each)
                self._behind[name] = kept
                if not kept:
                    del self._behind[name]
                    if name in self._ready:
                        self._ready.remove(name)
        return removed

    def remove_ready(self) -> list[Message]:
        """Take all messages that are not begun."""
        if not self._has_series:
            return [self._first_of(each) for each in _drained(self._ready)]
        with self._lock:
            return [each.message for each in self._forget_unbegun()]


def _drained(items: deque[T], most: float = math.inf) -> list[T]:
    # One by one, since other threads may take some at the same time.
    taken: list[T] = []
    try:
        while len(taken) < most:
            taken.append(items.popleft())
    except IndexError:
        return taken
    return taken
