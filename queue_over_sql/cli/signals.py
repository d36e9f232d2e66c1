"""Stopping cleanly: SIGINT and SIGTERM as events instead of exceptions."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_POLL_SECONDS = 0.05


class Flag:
    """What a signal handler may set at any moment, and the main thread waits for.

    Not ``threading.Event``: its lock may be held by the very code that the signal interrupts, and
    an untimed wait for it does not return to run a handler when another thread took the signal.
    """

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._set

    def set(self) -> None:
        """Set it for good."""
        self._set = True

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it is set, at most `timeout` seconds; tells whether it is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._set:
            left = _POLL_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, _POLL_SECONDS))
        return self._set


class Stop:
    """Whether this process was asked to stop, and whether it was asked again, to stop now."""

    def __init__(self) -> None:
        self.asked = Flag()
        self.now = Flag()

    def ask(self) -> None:
        """Note one more request: the first asks to finish and stop, the second to stop now."""
        (self.now if self.asked.is_set() else self.asked).set()


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Inside, SIGINT and SIGTERM only set the `Stop`; afterwards they mean what they did before."""
    stop = Stop()

    def note(number: int, frame: FrameType | None) -> None:
        del number, frame
        stop.ask()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
