"""Time limits of handler calls, and their interruption.

A task is cancelled at its time limit, and has a few seconds to end. A thread cannot be interrupted,
so its call is abandoned: the message goes to another consumer, another thread replaces this one,
and the fence refuses everything that the call still does to the message.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import logging
import math
import time
from typing import TYPE_CHECKING

from queue_over_sql.database.runtime import THREADS, Interruption, Running, Runtime
from queue_over_sql.errors import ClaimLost
from queue_over_sql.message import note_cancelled, when_cancelled
from queue_over_sql.values.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from queue_over_sql.message import Message
    from queue_over_sql.worker.handler import Handler


_log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""How long a task that was cancelled at its time limit has to end."""
_LONGEST_SLEEP = 60.0


class HandlerStopped(asyncio.CancelledError):
    """The handler was cancelled because its worker stops; it did not fail."""


class CallAbandoned(HandlerStopped):
    """The call took too long and was abandoned; its messages are already settled."""


class TimedOut(Exception):
    """The call was interrupted at its time limit; the text is the reason."""


class _Stop(enum.Enum):
    TIMED_OUT = enum.auto()
    CLAIM_LOST = enum.auto()
    ABANDONED = enum.auto()


@dataclasses.dataclass(eq=False, slots=True)
class _Call:
    handler: Handler
    messages: Sequence[Message]
    interruption: Interruption | None
    abandon: Callable[[str], None]
    began_at: float
    limit_at: float
    slow_at: float
    stop: _Stop | None = None
    over: bool = False

    @property
    def due_at(self) -> float:
        return min(self.limit_at, self.slow_at)

    @property
    def reason(self) -> str:
        return f"timed out after {duration_text(self.handler.timeout or 0.0)}"


class TimeLimits:
    """Supervises the calls of a worker's handlers, and interrupts those that time out.

    It uses a thread or task of its own if a handler has a ``timeout`` or a ``slow_after``.
    """

    def __init__(self, runtime: Runtime = THREADS) -> None:
        self._runtime = runtime
        self._changed = runtime.condition()
        self._calls: dict[int, _Call] = {}
        self._running: Running | None = None
        self._ended = False
        # When the thread wakes up by itself.
        self._wakes_at = math.inf

    def concern(self, handler: Handler) -> bool:
        """Whether calls of this handler can be interrupted or reported."""
        limited = handler.timeout is not None or handler.slow_after is not None
        return limited or self._runtime.interruption() is not None

    @contextlib.contextmanager
    def calling(
        self, handler: Handler, messages: Sequence[Message], abandon: Callable[[str], None]
    ) -> Iterator[None]:
        """Supervise one call of a handler, which the block makes.

        Args:
            handler: the handler.
            messages: the messages of the call.
            abandon: called in another thread with the reason if the call does not end in time; it
                must settle the messages.

        Raises:
            TimedOut, ClaimLost, HandlerStopped: the call was interrupted for this reason.
            CallAbandoned: the call was abandoned, and has now ended.
        """
        interruption = self._runtime.interruption()
        limit, slow = handler.timeout or math.inf, handler.slow_after or math.inf
        now = time.monotonic()
        call = _Call(handler, messages, interruption, abandon, now, now + limit, now + slow)
        if interruption is not None:
            for message in messages:
                when_cancelled(message, lambda: self._lost(call))
        self._begin(call)
        try:
            yield
        except BaseException as error:
            if (stopped := self._end(call)) is None:
                raise
            raise stopped from error
        if (stopped := self._end(call)) is not None:
            raise stopped

    def end(self) -> None:
        """Stop the supervision."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _begin(self, call: _Call) -> None:
        if call.due_at == math.inf:
            return
        with self._changed:
            # First of all, because it fails if no thread is free.
            if self._running is None:
                self._running = self._runtime.start("queue-over-sql-limits", self._loop)
            self._calls[id(call)] = call
            if call.due_at < self._wakes_at:
                self._changed.notify_all()

    def _end(self, call: _Call) -> BaseException | None:
        with self._changed:
            call.over = True
            self._calls.pop(id(call), None)
        for message in call.messages:
            when_cancelled(message, None)
        stopped = call.interruption is not None and call.interruption.end()
        if call.stop is None:
            return None
        if call.stop is _Stop.ABANDONED:
            return CallAbandoned()
        if stopped:
            return HandlerStopped()
        if call.stop is _Stop.TIMED_OUT:
            return TimedOut(call.reason)
        names = ", ".join(map(repr, call.messages))
        return ClaimLost(
            f"The handler was cancelled because its claim is lost: {names}.", call.messages
        )

    def _loop(self) -> None:
        while not self._ended:
            with self._changed:
                now = time.monotonic()
                earliest = min((each.due_at for each in self._calls.values()), default=math.inf)
                self._wakes_at = min(earliest, now + _LONGEST_SLEEP)
                if not self._ended and self._wakes_at > now:
                    self._changed.wait(self._wakes_at - now)
                now = time.monotonic()
                due = [each for each in self._calls.values() if each.due_at <= now]
            for call in due:
                try:
                    self._fall_due(call, now)
                except Exception:  # noqa: BLE001 - else no limit would be kept any more
                    _log.exception("The check of time limits continues after an unexpected error.")

    def _fall_due(self, call: _Call, now: float) -> None:
        with self._changed:
            if call.over:
                return
            slow, late = now >= call.slow_at, now >= call.limit_at
            if slow:
                call.slow_at = math.inf
            if late:
                self._stop(call, now)
        if late:
            for message in call.messages:
                note_cancelled(message)
            if call.stop is _Stop.ABANDONED:
                call.abandon(call.reason)
        if slow:
            # In another thread, so that a user's function cannot delay the time limits of others.
            seconds = now - call.began_at
            self._runtime.start(
                "queue-over-sql-slow", report_slow, call.handler, call.messages, seconds
            )

    def _stop(self, call: _Call, now: float) -> None:
        call.limit_at = math.inf
        if call.stop is None and call.interruption is not None:
            call.stop, call.limit_at = _Stop.TIMED_OUT, now + GRACE_SECONDS
            call.interruption.begin()
        else:
            call.stop = _Stop.ABANDONED

    def _lost(self, call: _Call) -> None:
        with self._changed:
            lost = all(message.cancelled for message in call.messages)
            if lost and not call.over and call.stop is None and call.interruption is not None:
                call.stop = _Stop.CLAIM_LOST
                call.interruption.begin()


def report_slow(handler: Handler, messages: Sequence[Message], seconds: float) -> None:
    """Log that a handler has run for longer than its ``slow_after``; once per call."""
    names = ", ".join(map(repr, messages))
    _log.warning(
        "The handler of queue %s has been running for %.1f s: %s", handler.queue, seconds, names
    )
    if handler.on_slow is None:
        return
    for message in messages:
        try:
            handler.on_slow(message, seconds)
        except Exception:  # noqa: BLE001 - it is the user's
            _log.exception("on_slow of queue %s failed.", handler.queue)
