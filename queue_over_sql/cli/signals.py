"""Stopping cleanly: SIGINT and SIGTERM as events instead of exceptions."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether this process was asked to stop, and whether it was asked again, to stop now."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.now = threading.Event()

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
