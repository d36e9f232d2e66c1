"""Isolation: keeps suspects apart from all else that this process has in hand."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from typing import TYPE_CHECKING, Final, Protocol

from queue_over_sql.database.forks import note_heir, shared_lock
from queue_over_sql.message import lease_ends_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from queue_over_sql.message import Message
_log = logging.getLogger(__name__)

# How long suspects wait for callers of ``consume``, and these for suspects.
_CALLERS_SECONDS: Final = 30.0
# How long suspects wait for what is in hand while no handler runs.
_IDLE_SECONDS: Final = 30.0
# A caller that polls asks for its suspects again within this time.
_ASKS_AGAIN_WITHIN: Final = 2.0
_NEVER: Final = float("-inf")


class _NoHolder:
    """What no reference refers to."""


_NO_HOLDER: Final[weakref.ref[object]] = weakref.ref(_NoHolder())


class Hands(Protocol):
    """What a worker of this process has in hand."""

    @property
    def full(self) -> bool:
        """Whether it has messages in hand, or is claiming some; without suspects that wait."""

    @property
    def calling(self) -> bool:
        """Whether it runs handlers now."""

    def in_hand(self) -> list[str]:
        """What makes it full, in words."""

    def wake(self) -> None:
        """Let it look again at what it may do."""


class Isolation:
    """Keeps suspects apart from all else that a process has in hand, if it has a worker.

    All services of the process share one, because a crash ends the work of each. A worker begins
    its suspects when nothing else is in hand, and no claim is made until they are over. Messages of
    a caller of ``consume`` count for a while only, because a program may keep one for as long as it
    runs.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        # The clock on which leases end.
        self._clock = clock
        self.lock = shared_lock()
        """Held while a worker decides to claim, or to claim no more."""
        # Weak, because a worker of a closed event loop never leaves. With the loop of each.
        self._workers: list[tuple[weakref.ref[Hands], object]] = []
        self._holder: weakref.ref[object] = _NO_HOLDER
        self._held_until = _NEVER
        # When the suspects stop waiting for what no handler works on.
        self._in_vain_at = _NEVER
        # How many callers claim now, and what they have in hand. Of suspects also until when
        # others do not claim.
        self._claiming = 0
        self._called: list[tuple[Message, object]] = []
        self._suspects: list[tuple[Message, float]] = []
        # Since when a caller waits for its suspects, and until when it may still be waiting.
        self._asked_at = self._asked_until = _NEVER
        note_heir(self)

    def forked(self) -> None:
        """Forget the workers and callers of the parent: none of them runs in a forked child."""
        self._workers, self._holder = [], _NO_HOLDER
        self._claiming, self._called, self._suspects = 0, [], []
        self._asked_at = self._asked_until = _NEVER

    def join(self, worker: Hands) -> None:
        """Note a worker that begins to run."""
        with self.lock:
            self._workers.append((weakref.ref(worker), _loop()))

    def leave(self, worker: Hands) -> None:
        """Note that a worker has ended."""
        with self.lock:
            self._workers = [each for each in self._workers if each[0]() not in (worker, None)]

    @property
    def has_workers(self) -> bool:
        """Whether a worker runs in this process."""
        return bool(self._workers)

    def _is_any_full(self) -> bool:
        return any((worker := each()) is not None and worker.full for each, _ in self._workers)

    @property
    def holder(self) -> object | None:
        """Who has a worker's suspects."""
        return self._holder()

    def begin(self, holder: object) -> bool:
        """Keep others from claiming while this one has suspects; False if another has some."""
        with self.lock:
            if self.holder is None and not self._caller_comes_first():
                self._holder = weakref.ref(holder)
                now = self._clock()
                self._held_until, self._in_vain_at = now + _CALLERS_SECONDS, now + _IDLE_SECONDS
            return self.holder is holder

    def end(self, holder: object) -> None:
        """Let all claim again."""
        with self.lock:
            if self.holder is not holder:
                return
            self._holder = _NO_HOLDER
        here = _loop()
        for each, loop in list(self._workers):
            # Those of other event loops look again by themselves, after a moment.
            if (worker := each()) is not None and loop in (None, here):
                worker.wake()

    def is_alone(self) -> bool:
        """Whether nothing is in hand except the suspects of a worker that wait.

        No mistake in what counts as in hand may stop them for ever, nor a claim that never ends: if
        no handler has run for a while, they do not wait for the rest.
        """
        left: list[str] = []
        with self.lock:
            now = self._clock()
            if now < self._held_until and (
                self._claiming or any(_in_hand(each, now) for each, _ in self._called)
            ):
                return False
            full = [worker for each, _ in self._workers if (worker := each()) and worker.full]
            if any(worker.calling for worker in full):
                self._in_vain_at = now + _IDLE_SECONDS
                return False
            if full:
                if now < self._in_vain_at:
                    return False
                left = [text for worker in full for text in worker.in_hand()]
        if left:
            _log.warning(
                "Messages that were with a dead consumer have waited %.0f s to run alone, while no "
                "handler ran. They run now, although this process still has in hand: %s. If you "
                "see this often, report it.",
                _IDLE_SECONDS,
                "; ".join(left),
            )
        return True

    def stops_workers(self) -> bool:
        """Whether workers claim nothing now."""
        return self.holder is not None or self._caller_comes_first()

    @contextlib.contextmanager
    def claiming(self) -> Iterator[bool]:
        """Note that a caller claims during the block; False if it must claim nothing now."""
        with self.lock:
            allowed = self.holder is None or self._clock() >= self._held_until
            self._claiming += allowed
        try:
            yield allowed
        finally:
            with self.lock:
                self._claiming -= allowed

    def admits_suspects(self) -> bool:
        """Whether a caller may have suspects now; if not, workers claim nothing for a moment.

        In the end it may have them whatever else is in hand, so that nothing starves.
        """
        now = self._clock()
        with self.lock:
            if self._asked_until < now - _CALLERS_SECONDS:
                self._asked_at = now
            free = self.holder is None and not self._is_any_full()
            if free or now >= self._asked_at + _CALLERS_SECONDS:
                self._asked_at = self._asked_until = _NEVER
                return True
            self._asked_until = now + _ASKS_AGAIN_WITHIN
            return False

    def note(self, messages: Sequence[Message], of: object, *, suspects: bool) -> None:
        """Note what a caller has in hand from now on, by claims of this consumer."""
        now = self._clock()
        until = now + _CALLERS_SECONDS
        with self.lock:
            self._called = [each for each in self._called if _in_hand(each[0], now)]
            self._called += [(message, of) for message in messages]
            if suspects:
                self._suspects += [(message, until) for message in messages]

    def forget(self, of: object) -> None:
        """Forget the messages of a consumer that has given them back."""
        with self.lock:
            gone = {id(message) for message, owner in self._called if owner is of}
            self._called = [each for each in self._called if each[1] is not of]
            self._suspects = [each for each in self._suspects if id(each[0]) not in gone]

    def _caller_comes_first(self) -> bool:
        if not self._suspects and self._asked_until == _NEVER:
            return False
        now = self._clock()
        self._suspects = [
            each for each in self._suspects if now < each[1] and _in_hand(each[0], now)
        ]
        return bool(self._suspects) or now < self._asked_until


def _loop() -> object | None:
    """The event loop of the caller; None for a thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _in_hand(message: Message, now: float) -> bool:
    return not message.settled and now < lease_ends_at(message)
